"""Counters of one run of a query, besides the entries that it reads."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True)
class RunCounters:
    """Entries per stream since the run began: lost, claimed from dead consumers, moved to the dead-letter stream, and
    sent to a retry stream. bad: values that do not fit their column's type, per stream and column."""

    lost: Counter[str] = field(default_factory=Counter)
    claimed: Counter[str] = field(default_factory=Counter)
    dead: Counter[str] = field(default_factory=Counter)
    retried: Counter[str] = field(default_factory=Counter)
    bad: Counter[tuple[str, str]] = field(default_factory=Counter)

    def to_json(self) -> dict[str, object]:
        """Return the counters above zero, as the query's progress shows them."""
        counters = {"lost": self.lost, "claimed": self.claimed, "dead": self.dead, "retried": self.retried}
        report: dict[str, object] = {name: dict(+counts) for name, counts in counters.items() if +counts}
        bad: dict[str, dict[str, int]] = {}
        for (stream, column), count in self.bad.items():
            bad.setdefault(stream, {})[column] = count
        return {**report, "bad": bad} if bad else report
