"""A stream, a group and a server's memory at one moment, as numbers that can be compared with later ones. Pure.

entries ever added   |······ removed ······|████ not needed ████|░░░░░░ needed ░░░░░░|
                     0                  removed               needed               added
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_streams.base.ids import StreamId, age_ms
from spark_streams.connector.lag.survey import GroupLag, StreamSummary


@dataclass(frozen=True)
class StreamPoint:
    """length, added: entries, now and ever; first_age_ms: age of the oldest entry, None if its ID is not a time; bytes:
    memory of the stream, None if not known; first: the oldest entry, None: there is none."""

    at_ms: int
    length: int
    added: int
    first_age_ms: int | None
    bytes: int | None = None
    first: StreamId | None = None

    @property
    def removed(self) -> int:
        """Entries that have left the stream."""
        return self.added - self.length

    @classmethod
    def of(cls, stream: StreamSummary, at_ms: int, size: int | None) -> StreamPoint | None:
        """Return the point of a stream; None before Redis 7, which does not count entries that were added."""
        if stream.added is None:
            return None
        first = StreamId.parse(stream.first) if stream.first else None
        age = None if first is None else age_ms(first, at_ms)
        return cls(at_ms, stream.length, stream.added, age, size, first)


@dataclass(frozen=True)
class GroupPoint:
    """needed: number of the first entry that the group has not acknowledged, counted as `added` counts, None if not
    known; lag_ms: age of this entry, None if its ID is not a time; waits: whether there is such an entry; is_exact:
    whether the number is known, and not estimated. A number below the stream's `removed`: it was trimmed unread."""

    needed: float | None
    lag_ms: int | None
    waits: bool
    is_exact: bool = False

    @classmethod
    def of(cls, group: GroupLag, stream: StreamPoint) -> GroupPoint:
        """Return the point of a group of this stream."""
        waits = group.lag > 0 or group.pending > 0
        position = StreamId.parse(group.last_delivered)
        oldest = None if group.oldest_pending is None else StreamId.parse(group.oldest_pending)
        if oldest is not None and oldest <= position:
            if stream.first is not None and oldest > stream.first:
                return cls(None if group.at_least else _estimate(group, stream, position), group.lag_ms, waits)
            is_first = oldest == stream.first
            return cls(stream.removed if is_first else stream.removed - 1, group.lag_ms, waits, True)
        if stream.first is not None and position >= stream.first:
            # Entries that were added after the look at the stream are in the lag, but the first entry is not needed.
            needed = None if group.at_least else max(stream.added - group.lag, stream.removed + 1)
            return cls(needed, group.lag_ms, waits, needed is not None)
        # All that the stream has is undelivered. Only the group's own count tells whether more was.
        is_exact = group.delivered is not None
        return cls(
            min(group.delivered or 0, stream.removed) if is_exact else stream.removed, group.lag_ms, waits, is_exact
        )


def _estimate(group: GroupLag, stream: StreamPoint, position: StreamId) -> float | None:
    """Return where the oldest pending entry is, by the times of the IDs."""
    undelivered = stream.added - group.lag
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
