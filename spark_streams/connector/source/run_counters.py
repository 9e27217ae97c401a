"""Counters of one run of a query, besides the entries that it reads."""

from __future__ import annotations

from collections import Counter, defaultdict

from spark_streams.connector import counters
from spark_streams.connector.counters import RunCounter


class RunCounters:
    """What a run has counted so far (model.counters.TABLE)."""

    def __init__(self) -> None:
        self._entries: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._values: defaultdict[str, Counter[tuple[str, str]]] = defaultdict(Counter)

    def entries(self, counter: RunCounter) -> Counter[str]:
        """Return the numbers of a counter of entries, by stream."""
        return self._entries[counter.name]

    def values(self, counter: RunCounter) -> Counter[tuple[str, str]]:
        """Return the numbers of a counter of values, by stream and column."""
        return self._values[counter.name]

    def to_json(self) -> dict[str, object]:
        """Return the counters above zero, as the query's progress shows them."""
        report: dict[str, object] = {}
        for counter in counters.TABLE:
            by_entries = counter.unit == "entries"
            if counts := dict(+self.entries(counter)) if by_entries else _by_stream(self.values(counter)):
                report[counter.name] = counts
        return report


def _by_stream(values: Counter[tuple[str, str]]) -> dict[str, dict[str, int]]:
    by_stream: dict[str, dict[str, int]] = {}
    for (stream, column), count in (+values).items():
        by_stream.setdefault(stream, {})[column] = count
    return by_stream
