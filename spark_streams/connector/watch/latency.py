"""How old entries are when their micro-batch is committed: a histogram by stream. Pure.

An entry's ID is the time of its XADD. Of a batch, the first and the last ID and the number of its entries are known,
which are taken as evenly spread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_streams.base.ids import StreamId, age_ms
from spark_streams.connector.source.offset import Range

# Seconds, as Prometheus writes them.
BOUNDS = ("0.1", "0.25", "0.5", "1.0", "2.5", "5.0", "10.0", "30.0", "60.0", "300.0", "1800.0", "+Inf")
_NEAR = 10_000  # milliseconds between the IDs of entries that arrive without a pause


@dataclass
class Latency:
    """Ages of entries, in seconds. counts: of those that are at most as old as each bound; total: the sum."""

    counts: list[float] = field(default_factory=lambda: [0.0] * len(BOUNDS))
    total: float = 0.0

    def add(self, part: Range, first: Mapping[Range, StreamId], at: int) -> None:
        """Add entries that are committed at this time, in milliseconds. first: their first ones, if not removed yet."""
        near = part.after if part.count > 1 and part.last.ms - part.after.ms < _NEAR else part.last
        ages = age_ms(part.last, at), age_ms(first.get(part, near), at)
        if ages[0] is None or ages[1] is None:
            return  # the IDs are no times
        youngest, oldest = ages[0] / 1000, ages[1] / 1000
        for index, bound in enumerate(map(float, BOUNDS)):
            share = (bound - youngest) / (oldest - youngest) if oldest > youngest else float(bound >= youngest)
            self.counts[index] += part.count * min(max(share, 0.0), 1.0)
        self.total += part.count * (youngest + oldest) / 2
