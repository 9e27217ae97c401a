"""The report of a run. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_streams.verify.checker import Report
from spark_streams.verify.history import list_first

HELD, BROKEN, UNPROVED = "held", "broken", "not proved"  # verdicts
# Kinds of faults of the checker by their names here. The first five are always shown.
_NAMES = {
    "lost": "lost",
    "duplicated": "twice",
    "reordered": "out of order",
    "early": "acknowledged early",
    "pending": "left pending",
    "buried_twice": "twice",
    "phantom": "sent by nobody",
    "buried": "dead letters of good entries",
}
_SHOWN = 20  # entries of a fault


@dataclass(frozen=True)
class Result:
    """evidence: counts, none of which may be 0; sections: what else is reported, values by name and title; cause: why
    the query did not read everything, "" if it did."""

    report: Report
    evidence: Mapping[str, int]
    sections: Mapping[str, Mapping[str, str]]
    cause: str = ""

    @property
    def counts(self) -> dict[str, int]:
        """Number of faults by name."""
        counts = dict.fromkeys(list(_NAMES.values())[:5], 0)
        for kind, count in self.report.faults().items():
            name = _NAMES.get(kind, kind)
            counts[name] = counts.get(name, 0) + count
        return counts

    @property
    def verdict(self) -> str:
        """One of the three verdicts."""
        if self.report or self.cause:
            return BROKEN
        return HELD if all(self.evidence.values()) else UNPROVED

    @property
    def sentence(self) -> str:
        """The verdict as a sentence."""
        missing = ", ".join(f"no {name}" for name, count in self.evidence.items() if not count)
        return {
            HELD: "The guarantees held.",
            BROKEN: f"The guarantees did not hold. {self.cause}".strip(),
            UNPROVED: f"Nothing is wrong, but nothing is proved: {missing}. Give the run more --minutes.",
        }[self.verdict]

    def titled(self) -> dict[str, Mapping[str, str]]:
        """Return all that is reported beside the verdict: texts by name, by title."""
        wrong = {
            _NAMES.get(kind, kind): list_first(map(_place, self._values(kind)), _SHOWN) for kind in self.report.faults()
        }
        evidence = {name: f"{count:,}" for name, count in self.evidence.items()}
        return {**({"what is wrong": wrong} if wrong else {}), "evidence": evidence, **self.sections}

    def for_json(self) -> dict[str, object]:
        """Return the result as a JSON object."""
        faults = {kind: [_place(value) for value in self._values(kind)] for kind in self.report.faults()}
        verdict = {"verdict": self.verdict, "sentence": self.sentence, "counts": self.counts, "faults": faults}
        return {**verdict, "evidence": dict(self.evidence), **{title: dict(of) for title, of in self.sections.items()}}

    def __str__(self) -> str:
        lines = [" · ".join(f"{name} {count:,}" for name, count in self.counts.items()), "", self.sentence]
        for title, texts in self.titled().items():
            width = max(map(len, texts), default=0)
            lines += ["", title, *(f"  {name:<{width}}  {text}" for name, text in texts.items())]
        return "\n".join(lines)

    def _values(self, kind: str) -> list[object]:
        return list(getattr(self.report, kind))


def _place(value: object) -> str:
    """Return a place or a value as `stream ID`."""
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
