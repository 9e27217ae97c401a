"""Groups as bookmarks (noAck): each shows the position that the query has committed, and delivers no entry.

The checkpoint has the query's position. Its groups show it to other clients: `lag`, `trim=acked` and `onCommit` of
other groups use it. Each commit sets the groups, with the commit marks. After a crash a group may be at the batch
before, and another client may have moved it. The checkpoint decides, and the next commit sets the group.

`cached`: per stream, the group's position when this run has last read or set it.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_streams.model.ids import StreamId
from spark_streams.source.group.admin import GroupChange, change_groups
from spark_streams.source.group.findings import Start
from spark_streams.source.group.state import GroupState
from spark_streams.source.membership import Membership
from spark_streams.source.offset import Offset
from spark_streams.wire.connection.server import Server

Bookmarks = Mapping[str, StreamId]


def bookmarks_of(states: Mapping[str, GroupState]) -> Bookmarks:
    """Return the positions of the groups."""
    return {stream: state.bookmark_position or state.last_delivered for stream, state in states.items()}


def set_bookmarks(server: Server, member: Membership, committed: Offset, cached: Bookmarks | None) -> Bookmarks:
    """Set the groups to the committed positions, with the number of entries read up to there if that is known. Return
    the new positions. cached: None if they are unknown; then all groups are set.

    Raises DataLossError, GroupMissingError.
    """
    changed = {
        stream: at
        for stream, at in committed.at.items()
        if cached is None or cached.get(stream, at.position) != at.position
    }
    changes = {
        # A mark shows that the query is active.
        stream: GroupChange(
            set_to=Start(at.position, at.read), mark=at.mark if at.number else None, touch=at.number > 0
        )
        for stream, at in changed.items()
    }
    change_groups(server, member, changes)
    return {**(cached or {}), **{stream: at.position for stream, at in changed.items()}}
