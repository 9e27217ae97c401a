"""A line of a journey: one statement about an entry, its source, and why it is not known if it is not exact. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from spark_streams.model.times import from_milliseconds


@dataclass(frozen=True)
class Line:
    """event: a word for programs; text: for people; source: command, key or field that says so; at: when, in Unix ms,
    None: no time is known; why_unknown: "" if the line is exact; group: of consumers; facts: more values for programs.
    """

    event: str
    text: str
    source: str
    at: int | None = None
    why_unknown: str = ""
    group: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)

    @property
    def known(self) -> str:
        """`exact`, or `not known, because …`."""
        return f"not known, because {self.why_unknown}" if self.why_unknown else "exact"

    def as_json(self) -> dict[str, object]:
        """Return the JSON object."""
        return {
            "event": self.event,
            "group": self.group or None,
            "at_ms": self.at,
            "text": self.text,
            "exact": not self.why_unknown,
            "because": self.why_unknown or None,
            "source": self.source,
            **self.facts,
        }


def time_text(at: int | None) -> str:
    """Return a time in UTC for people."""
    try:
        return "-" if at is None else from_milliseconds(at).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"
    except OverflowError:  # a number that is no time
        return str(at)


def in_order(lines: Iterable[Line]) -> list[Line]:
    """Return lines with a time in its order, then the others as they come."""
    return sorted(lines, key=lambda line: (line.at is None, line.at or 0))
