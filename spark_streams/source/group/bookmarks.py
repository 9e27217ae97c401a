"""Groups as bookmarks (noAck): each shows the position that the query has committed, and delivers no entry.

The checkpoint has the query's position. Its groups show it to other clients: `lag`, `trim=acked` and `onCommit` of
other groups use it. Each commit sets the groups. After a crash a group may be at the batch before, and another client
may have moved it. The checkpoint decides, and the next commit sets the group.

`cached`, below: per stream, the group's position when this run has last read or set it.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_streams.model.ids import StreamId
from spark_streams.source.findings.finding import Start
from spark_streams.source.findings.group_state import GroupState
from spark_streams.source.group.group_admin import set_groups_to
from spark_streams.source.membership import Membership
from spark_streams.source.offset import Offset
from spark_streams.wire.connection.server import Server

Bookmarks = Mapping[str, StreamId]


def bookmarks_of(states: Mapping[str, GroupState]) -> Bookmarks:
    """Return the positions of the groups."""
    return {stream: state.bookmark_position or state.last_delivered for stream, state in states.items()}


def are_moved(cached: Bookmarks, states: Mapping[str, GroupState]) -> bool:
    """Whether another client has moved one of them."""
    return any(
        state.bookmark_position not in (None, cached.get(stream, state.bookmark_position))
        for stream, state in states.items()
    )


def set_bookmarks(server: Server, member: Membership, committed: Offset, cached: Bookmarks | None) -> Bookmarks:
    """Set the groups to the committed positions, with the number of entries read up to there if that is known. Return
    the new positions. cached: None if they are unknown; then all groups are set.

    Raises DataLossError, GroupMissingError.
    """
    read = {stream: count.read for stream, count in committed.counts.items()}
    starts = {
        stream: Start(position, read.get(stream))
        for stream, position in committed.positions.items()
        if cached is None or cached.get(stream, position) != position
    }
    set_groups_to(server, member, starts)
    return {**(cached or {}), **{stream: start.position for stream, start in starts.items()}}
