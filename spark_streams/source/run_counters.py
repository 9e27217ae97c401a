"""What a run of a query has done besides reading entries."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True)
class RunCounters:
    """Entries per stream, since the run began: lost, claimed from dead consumers, posted as dead letters, and sent to
    wait for another try; and bad values, that did not fit their column's type, per stream and column."""

    lost: Counter[str] = field(default_factory=Counter)
    claimed: Counter[str] = field(default_factory=Counter)
    dead: Counter[str] = field(default_factory=Counter)
    retried: Counter[str] = field(default_factory=Counter)
    bad: Counter[tuple[str, str]] = field(default_factory=Counter)

    def to_json(self) -> dict[str, object]:
        """Those that have counted anything, as the query's progress shows them."""
        counters = {"lost": self.lost, "claimed": self.claimed, "dead": self.dead, "retried": self.retried}
        told: dict[str, object] = {name: dict(+counts) for name, counts in counters.items() if +counts}
        bad: dict[str, dict[str, int]] = {}
        for (stream, column), count in self.bad.items():
            bad.setdefault(stream, {})[column] = count
        return {**told, "bad": bad} if bad else told
