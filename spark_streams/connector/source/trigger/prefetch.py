"""Reserving ahead: the entries of the next batch, while the tasks of the present batch run.

Without it, the server is idle while Spark plans and commits. If a batch is large and more entries follow it, the
background worker reserves these at once. The next trigger then only has to look at the groups.

Entries that are reserved ahead are pending above the last logged offset, like those that a crash leaves behind: the
next run begins with them. The query does not reserve ahead in a group that other consumers read from, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_streams.base.ids import StreamId
from spark_streams.connector.source.group.compare import lost_above
from spark_streams.connector.source.group.state import GroupState, Reserved, fetch_state
from spark_streams.connector.source.quota import BatchQuota
from spark_streams.connector.source.trigger.admission import Admission
from spark_streams.connector.source.trigger.group_role import GroupRole
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.xinfo import StreamState


@dataclass(frozen=True)
class Prefetch:
    """A reservation for the next batch. read: how many entries of each stream were read up to the end of the present
    batch; positions: where that leaves the groups; turn: of the next batch; heads: the streams at the last trigger."""

    role: GroupRole
    admission: Admission
    read: Mapping[str, int]
    positions: Mapping[str, StreamId]
    quota: BatchQuota
    turn: int
    heads: Mapping[str, StreamState]

    def work(self, server: Server) -> Reserved | None:
        """Reserve entries, unless the next trigger must look at the streams first. Raises as `reserve` does."""
        role, admission = self.role, self.admission
        heads, groups = fetch_state(server, role.member, list(self.read), self.heads, if_alone=True)
        states = {stream: state for stream, state in groups.items() if state is not None}
        if len(states) < len(groups) or any(self._is_other(s, heads[s], state) for s, state in states.items()):
            return None
        backlog = admission.backlog(heads, states)
        if not role.takes_long(admission, backlog, self.quota):
            return None
        reserved = role.new_entries(server, admission, heads, states, backlog, self.quota, self.turn)
        return reserved if reserved.parts else None

    def _is_other(self, stream: str, head: StreamState, state: GroupState) -> bool:
        """Whether the group is not where the batch leaves it (it was moved, or the server has returned to an older
        state), or the stream may have lost entries that the group has not delivered yet."""
        is_moved = state.last_delivered != self.positions[stream]
        return is_moved or (lost_above(head, state.last_delivered, self.read[stream]) or 0) != 0
