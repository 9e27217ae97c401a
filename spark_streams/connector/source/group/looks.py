"""Looks at some streams, with what is pending above the query's position."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from spark_streams.base.ids import MIN_ID, StreamId
from spark_streams.connector.source.group.compare import PendingAbove
from spark_streams.connector.source.group.state import Look
from spark_streams.connector.source.range import Range


@dataclass(frozen=True)
class Looks:
    """Looks at some streams, and what is pending above the position in each: for the query, and for nobody (released:
    number and last ID)."""

    looks: Mapping[str, Look]
    above: Mapping[str, list[Range]]
    released: Mapping[str, tuple[int, StreamId]]

    def above_of(self, stream: str) -> PendingAbove:
        """Return what is pending above the position for the query, or for nobody: the query takes it."""
        released, last = self.released.get(stream, (0, MIN_ID))
        ranges = self.above.get(stream, [])
        return PendingAbove(self.ours_above(stream) + released, max([last, *(entries.last for entries in ranges)]))

    def ours_above(self, stream: str) -> int:
        """Return how many entries are pending for the query above its position."""
        return sum(entries.count for entries in self.above.get(stream, ()))

    def of(self, streams: Collection[str]) -> Looks:
        """Return the looks at these streams."""
        return Looks(
            {stream: look for stream, look in self.looks.items() if stream in streams},
            {stream: ranges for stream, ranges in self.above.items() if stream in streams},
            {stream: released for stream, released in self.released.items() if stream in streams},
        )

    def with_later(self, other: Looks) -> Looks:
        """Return these looks, and later ones at some of the streams instead of theirs."""
        kept = self.of(self.looks.keys() - other.looks.keys())
        return Looks({**kept.looks, **other.looks}, {**kept.above, **other.above}, {**kept.released, **other.released})
