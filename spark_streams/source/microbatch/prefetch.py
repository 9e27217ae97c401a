"""New entries for a batch that are reserved ahead of it, beside the tasks of the batch before it.

A server works alone while Spark runs tasks, and stands still while Spark plans and commits. A large batch that has more
behind it is followed by the reserving of the next one at once; then making that batch costs a look at the groups. What
is reserved ahead is pending like anything that a crash leaves behind: above the last logged offset, and the next run
begins with it. A group that others read from, too, is not read ahead of time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_streams.model.ids import StreamId
from spark_streams.source.entry_range import EntryRange, entries_per_stream
from spark_streams.source.findings.account import held_above
from spark_streams.source.findings.group_state import GroupState, fetch_state
from spark_streams.source.microbatch.reserve import Reserving
from spark_streams.source.quota import BatchQuota
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.xinfo import StreamState


@dataclass(frozen=True)
class Ahead:
    """Ranges that were reserved for the next batch, and its remaining quota."""

    ranges: list[EntryRange]
    quota: BatchQuota

    def pending(self) -> Counter[str]:
        """How many entries are pending for it, per stream."""
        return entries_per_stream(self.ranges)

    def ends(self) -> dict[str, StreamId]:
        """Where it has left the groups that it has read from."""
        return {entries.stream: entries.last for entries in self.ranges}


@dataclass(frozen=True)
class Prefetch:
    """One reserving ahead. heads: the streams at the last look; turn: of the batch that it is for."""

    reserving: Reserving
    streams: Sequence[str]
    quota: BatchQuota
    turn: int
    heads: Mapping[str, StreamState]

    def work(self, server: Server) -> Ahead | None:
        """Reserve entries, unless the next trigger must decide. Raises as `reserve` does."""
        heads, groups = fetch_state(server, self.reserving.member, self.streams, self.heads)
        states = {s: state for s, state in groups.items() if state is not None and not state.has_others}
        if len(states) < len(groups) or any(_is_trimmed(heads[s], state) for s, state in states.items()):
            return None
        backlog = self.reserving.admission.backlog(heads, states)
        if not self.reserving.is_worth_it(backlog, self.quota):
            return None
        reserved, quota = self.reserving.new_entries(server, heads, states, backlog, self.quota, self.turn)
        return Ahead(reserved.ranges, quota) if reserved.ranges else None


def _is_trimmed(head: StreamState, state: GroupState) -> bool:
    """Whether the stream may have lost entries that the group has yet to deliver."""
    held = held_above(head, state.last_delivered)
    if held is None or head.added is None:
        return False
    return state.entries_read is None or head.added - held > state.entries_read
