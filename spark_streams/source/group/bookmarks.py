"""Groups as bookmarks (noAck): they stand where the query has committed, and deliver nothing.

The checkpoint says where the query is. Its groups show that to others: `lag`, `trim=acked` and `onCommit` of other
groups go by them. They are set when a batch is committed. After a crash they may stand at the batch before, and an
earlier version or a person may have moved them. The checkpoint counts, and the next commit sets them.

`known`, in what follows: per stream, where the group stands as this run has seen or set it.
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
    """Return where the groups stand now."""
    return {stream: state.stands or state.last_delivered for stream, state in states.items()}


def are_moved(known: Bookmarks, states: Mapping[str, GroupState]) -> bool:
    """Whether another client has moved one of them."""
    return any(state.stands not in (None, known.get(stream, state.stands)) for stream, state in states.items())


def set_bookmarks(server: Server, member: Membership, committed: Offset, known: Bookmarks | None) -> Bookmarks:
    """Set the groups to where the query has committed, with the number of entries that it has read up to there if that
    is known. Return where they stand then. known: None if nobody has looked; then all are set.

    Raises DataLossError, GroupMissingError.
    """
    starts = {
        stream: Start(position, _read(committed, stream))
        for stream, position in committed.positions.items()
        if known is None or known.get(stream, position) != position
    }
    set_groups_to(server, member, starts)
    return {**(known or {}), **{stream: start.position for stream, start in starts.items()}}


def _read(committed: Offset, stream: str) -> int | None:
    known = committed.counts.get(stream)
    return None if known is None or known.before else known.read
