"""Reserving ahead: the entries of the next batch, while the tasks of the present batch run.

Without it, the server is idle while Spark plans and commits. If a batch is large and more entries follow it, the
background worker reserves these at once. The next trigger then only has to look at the groups.

Entries that are reserved ahead are pending above the last logged offset, like those that a crash leaves behind: the
next run begins with them. The query does not reserve ahead in a group that other consumers read from, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_streams.model.ids import StreamId
from spark_streams.source.entry_range import EntryRange, entries_per_stream
from spark_streams.source.findings.balance import held_above
from spark_streams.source.findings.group_state import GroupState, fetch_state
from spark_streams.source.microbatch.reserve import Reserving
from spark_streams.source.quota import BatchQuota
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.xinfo import StreamState


@dataclass(frozen=True)
class Prefetched:
    """Ranges that are reserved for the next batch."""

    ranges: list[EntryRange]

    def pending(self) -> Counter[str]:
        """Return the number of reserved entries, per stream."""
        return entries_per_stream(self.ranges)

    def ends(self) -> dict[str, StreamId]:
        """Return the positions of the groups after the reservation."""
        return {entries.stream: entries.last for entries in self.ranges}


@dataclass(frozen=True)
class Prefetch:
    """A reservation for the next batch. heads: the streams at the last trigger; turn: of the next batch."""

    reserving: Reserving
    streams: Sequence[str]
    quota: BatchQuota
    turn: int
    heads: Mapping[str, StreamState]

    def work(self, server: Server) -> Prefetched | None:
        """Reserve entries, unless the next trigger must look at the streams first. Raises as `reserve` does."""
        heads, groups = fetch_state(server, self.reserving.member, self.streams, self.heads)
        states = {s: state for s, state in groups.items() if state is not None and not state.has_others}
        if len(states) < len(groups) or any(_is_trimmed(heads[s], state) for s, state in states.items()):
            return None
        backlog = self.reserving.admission.backlog(heads, states)
        if not self.reserving.is_worth_it(backlog, self.quota):
            return None
        reserved, _ = self.reserving.new_entries(server, heads, states, backlog, self.quota, self.turn)
        return Prefetched(reserved.ranges) if reserved.ranges else None


def _is_trimmed(head: StreamState, state: GroupState) -> bool:
    """Whether the stream may have lost entries that the group has not delivered yet."""
    held = held_above(head, state.last_delivered)
    if held is None or head.added is None:
        return False
    return state.entries_read is None or head.added - held > state.entries_read
