"""A line of a journey: one statement about an entry, its source, and why it is not known if it is not exact. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from spark_streams.base.times import from_milliseconds

_OF_BATCH = "this is known of the batch, not of the entry: the query may have written no row of it"


@dataclass(frozen=True)
class Line:
    """event: a word for programs; text: for people; source: command, key or field that says so; at: when, in Unix ms,
    None: no time is known; why_unknown: "" if the line is proved; group: of consumers; facts: more values for programs;
    is_of_batch: it is proved of a whole batch, of which the entry may have no row. A line is exact if it is proved of
    this entry, now."""

    event: str
    text: str
    source: str
    at: int | None = None
    why_unknown: str = ""
    group: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)
    is_of_batch: bool = False

    @property
    def is_exact(self) -> bool:
        """Whether the line is proved of this entry."""
        return not self.why_unknown and not self.is_of_batch

    @property
    def known(self) -> str:
        """`exact`, `of the batch`, or `not known, because …`."""
        if self.why_unknown:
            return f"not known, because {self.why_unknown}"
        return "of the batch" if self.is_of_batch else "exact"

    def as_json(self) -> dict[str, object]:
        """Return the JSON object."""
        return {
            "event": self.event,
            "group": self.group or None,
            "at_ms": self.at,
            "text": self.text,
            "exact": self.is_exact,
            "because": self.why_unknown or (_OF_BATCH if self.is_of_batch else None),
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
