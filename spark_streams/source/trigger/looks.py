"""Looks at some streams: each in one transaction, with what is pending above the query's position."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from spark_streams.errors import GroupMissingError
from spark_streams.model.ids import MIN_ID, StreamId
from spark_streams.source.group.compare import PendingAbove
from spark_streams.source.group.state import Look, fetch_looks, require_alone, require_none_released
from spark_streams.source.limits import Limits
from spark_streams.source.membership import Membership
from spark_streams.source.offset import Offset
from spark_streams.source.part import by_stream
from spark_streams.source.pending.claim import released_above
from spark_streams.source.pending_list import pending_ranges
from spark_streams.source.range import Range
from spark_streams.wire.connection.server import Server


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


def look_at(
    server: Server, member: Membership, start: Offset, streams: Sequence[str], no_ack: bool, limits: Limits
) -> Looks:
    """Look at streams, and list what is pending above the positions, up to the groups'. no_ack: the group only shows
    the position, and nothing may be pending in it. Raises StreamStateError, ServerError."""
    looks = fetch_looks(server, member, streams)
    if no_ack:
        for stream, look in looks.items():
            if look.group is not None:
                require_alone(member, stream, look.group)
                require_none_released(member, stream, look.group)
        return Looks(looks, {}, {})
    pending = [
        Range(stream, start[stream], look.group.last_delivered, until=look.time)
        for stream, look in looks.items()
        if look.group is not None and look.group.ours and look.group.last_delivered > start[stream]
    ]
    try:
        listed = pending_ranges(server, member, pending, limits.reserve_step, limits=limits)
    except GroupMissingError:  # destroyed since: look again
        return look_at(server, member, start, streams, no_ack, limits)
    above = by_stream(listed)
    released = {
        stream: released_above(server, member, stream, start[stream], look.group.last_delivered, limits.claim_page)
        for stream, look in looks.items()
        if look.group is not None and look.group.released and look.group.last_delivered > start[stream]
    }
    return Looks(looks, above, released)
