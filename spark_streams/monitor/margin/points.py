"""A stream, a group and a server's memory at one moment, as numbers that can be compared with later ones. Pure.

entries ever added   |······ removed ······|████ not needed ████|░░░░░░ needed ░░░░░░|
                     0                  removed               needed               added
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_streams.model.id_times import age_ms
from spark_streams.model.ids import StreamId
from spark_streams.monitor.lag_survey import GroupLag, StreamSummary


@dataclass(frozen=True)
class StreamPoint:
    """length, added: entries, now and ever; first_age_ms: age of the oldest entry, None if its ID is not a time; bytes:
    memory of the stream, None if not known."""

    at_ms: int
    length: int
    added: int
    first_age_ms: int | None
    bytes: int | None = None

    @property
    def removed(self) -> int:
        """Entries that have left the stream."""
        return self.added - self.length

    @classmethod
    def of(cls, stream: StreamSummary, at_ms: int, size: int | None) -> StreamPoint | None:
        """Return the point of a stream; None before Redis 7, which does not count entries that were added."""
        if stream.added is None:
            return None
        first = age_ms(StreamId.parse(stream.first), at_ms) if stream.first else None
        return cls(at_ms, stream.length, stream.added, first, size)


@dataclass(frozen=True)
class GroupPoint:
    """needed: number of the first entry that the group has not acknowledged, counted as `added` counts, None if not
    known; lag_ms: age of this entry, None if its ID is not a time; waits: whether there is such an entry."""

    needed: float | None
    lag_ms: int | None
    waits: bool

    @classmethod
    def of(cls, group: GroupLag, stream: StreamPoint) -> GroupPoint:
        """Return the point of a group of this stream."""
        waits = group.lag > 0 or group.pending > 0
        return cls(None if group.at_least else _needed(group, stream), group.lag_ms, waits)


def _needed(group: GroupLag, stream: StreamPoint) -> float | None:
    """Return where the group stands; below its position, where its oldest pending entry is by the times of the IDs."""
    undelivered = stream.added - group.lag
    position = StreamId.parse(group.last_delivered)
    if group.oldest_pending is None or StreamId.parse(group.oldest_pending) > position:
        return undelivered
    position_age = age_ms(position, stream.at_ms)
    if stream.first_age_ms is None or group.lag_ms is None or position_age is None:
        return None
    span = stream.first_age_ms - position_age
    part = (stream.first_age_ms - group.lag_ms) / span if span > 0 else 0.0
    estimate = stream.removed + min(max(part, 0.0), 1.0) * (undelivered - stream.removed)
    return max(stream.removed, min(estimate, undelivered - group.pending))


@dataclass(frozen=True)
class MemoryPoint:
    """Memory of a server in bytes. limit: maxmemory, 0: none; policy: maxmemory-policy."""

    at_ms: int
    used: int
    limit: int
    policy: str
