"""The short look of a trigger that follows another one: whether every group is as this run has left it.

One round trip without transactions. Anything else that it shows is looked at closely (trigger.observe)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from spark_streams.base.ids import StreamId
from spark_streams.connector.source.group.compare import lost_above
from spark_streams.connector.source.group.state import GroupState, fetch_state
from spark_streams.connector.source.offset import Offset, StreamOffset
from spark_streams.connector.source.part import by_stream
from spark_streams.connector.source.range import Range
from spark_streams.connector.source.trigger.group_role import GroupRole
from spark_streams.connector.source.trigger.run_state import QueryState, RunState, positions_of
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.xinfo import StreamState


def as_left(server: Server, role: GroupRole, start: Offset, streams: Sequence[str], run: RunState) -> QueryState | None:
    """Return the state if every group is as this run has left it and nothing is lost; None: look closer."""
    if any(stream not in start.at for stream in streams):
        return None
    if any(start.at[stream].read is None for stream in streams):
        return None  # others read from the group
    heads, groups = fetch_state(server, role.member, streams, run.heads, if_alone=True)
    above = {} if run.prefetched is None else by_stream(part.range for part in run.prefetched.parts)
    states: dict[str, GroupState] = {}
    for stream, group in groups.items():
        ahead = above.get(stream, [])
        if ahead and ahead[-1].last <= start[stream]:  # the group was set back before it has delivered these
            return None
        expected = _expected(role, stream, start, ahead, run)
        if group is None or not _is_quiet(start.at[stream], heads[stream], group, *expected):
            return None
        states[stream] = role.at_query(start.at[stream], group)
    run = replace(run, positions=positions_of(groups))
    return QueryState(
        start, heads, states, run.has_settled(start), above=above, left=start.left - states.keys(), run=run
    )


def _expected(
    role: GroupRole, stream: str, start: Offset, above: Sequence[Range], run: RunState
) -> tuple[StreamId, int, int, int]:
    """Return where the group must be, how many entries are pending for us, how many of them are above the position,
    and how many entries of the stream were read up to there."""
    at, count = start.at[stream], sum(entries.count for entries in above)
    position = above[-1].last if above else role.position(stream, start, run)
    unsettled = 0 if run.has_settled(start) else sum(part.count for part in start.pending(stream))
    return position, unsettled + count, count, at.read or 0


def _is_quiet(
    at: StreamOffset, head: StreamState, group: GroupState, position: StreamId, ours: int, above: int, read: int
) -> bool:
    """Whether a group is as the run has left it, and nothing of its stream is lost."""
    if not group.is_alone or group.ours != ours or group.last_delivered != position or not head.exists:
        return False
    if head.added is None or head.added < at.added or head.last < at.position:
        return False
    if at.number == 0 and head.added > at.added:  # some may be below the position at which the query begins
        return False
    reached = at.position if not above else position
    return (lost_above(head, reached, read + above) or 0) == 0
