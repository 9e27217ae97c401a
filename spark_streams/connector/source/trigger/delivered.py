"""The group delivers the entries of a batch to the query's consumer. They are pending until the batch is committed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_streams.base.ids import StreamId
from spark_streams.connector.errors import GroupMissingError
from spark_streams.connector.source.commit_mark import Mark, committed_key
from spark_streams.connector.source.group.looks import Looks
from spark_streams.connector.source.group.state import GroupState, Reserved, fetch_looks
from spark_streams.connector.source.offset import Offset, StreamOffset
from spark_streams.connector.source.part import by_stream
from spark_streams.connector.source.pending.claim import released_above
from spark_streams.connector.source.pending_list import acknowledge, pending_ranges
from spark_streams.connector.source.quota import BatchQuota
from spark_streams.connector.source.range import Range
from spark_streams.connector.source.trigger.admission import Admission
from spark_streams.connector.source.trigger.group_role import GroupRole
from spark_streams.connector.source.trigger.reserve import reserve
from spark_streams.connector.source.trigger.run_state import RunState
from spark_streams.connector.wire.connection.connection import pack
from spark_streams.connector.wire.connection.server import Server


class Delivered(GroupRole):
    """A query whose group delivers."""

    no_ack = False

    def look(self, server: Server, start: Offset, streams: Sequence[str]) -> Looks:
        """Look at streams, and list what is pending above the positions, up to the groups'."""
        member, limits = self.member, self.limits
        looks = fetch_looks(server, member, streams)
        pending = [
            Range(stream, start[stream], look.group.last_delivered, until=look.until)
            for stream, look in looks.items()
            if look.group is not None and look.group.ours and look.group.last_delivered > start[stream]
        ]
        try:
            listed = pending_ranges(server, member, pending, limits.reserve_step, limits=limits, asks_again=True)
        except GroupMissingError:  # destroyed since: look again
            return self.look(server, start, streams)
        released = {
            stream: released_above(server, member, stream, start[stream], look.group.last_delivered, limits.claim_page)
            for stream, look in looks.items()
            if look.group is not None and look.group.released and look.group.last_delivered > start[stream]
        }
        return Looks(looks, by_stream(listed), released)

    def at_query(self, at: StreamOffset, group: GroupState) -> GroupState:
        """Return the group as it is: the query reads on where the group delivers."""
        return group

    def position(self, stream: str, start: Offset, run: RunState) -> StreamId:
        """Return up to where the group has delivered."""
        return run.positions.get(stream, start[stream])

    def old_entries(self, server: Server, start: Offset, pending: Mapping[str, int]) -> Mapping[str, int]:
        """Return these entries: they were claimed or handed over, or an earlier checkpoint has left them."""
        return pending

    def take(
        self,
        server: Server,
        admission: Admission,
        wanted: Sequence[Range],
        groups: Mapping[str, GroupState],
        backlog: Mapping[str, int],
    ) -> Reserved:
        """Have the group deliver them."""
        step = min(self.limits.reserve_step, admission.size([entries.count for entries in wanted]))
        return reserve(server, self.member, wanted, groups, step, self.limits)

    def commit(
        self,
        server: Server,
        ranges: Sequence[Range],
        marks: Mapping[str, Mark],
        committed: Offset,
        settled: Offset | None,
    ) -> int:
        """Acknowledge these ranges, and set the commit marks after the last XACK."""
        group, consumer = self.member.group, self.member.consumer
        commands = [
            (stream, pack("SET", committed_key(stream, group, consumer), str(mark))) for stream, mark in marks.items()
        ]
        return acknowledge(server, self.member, ranges, self.limits, commands)

    def token_of(self, batch: str) -> str:
        """Return that of the batch."""
        return batch

    def takes_long(self, admission: Admission, backlog: Mapping[str, int], quota: BatchQuota) -> bool:
        """Whether the group is to deliver much."""
        waiting, admitted = sum(backlog.values()), sum(quota.within_stream_limits(backlog).values())
        taken = admitted if quota.entries is None else min(admitted, quota.entries)
        return taken >= self.limits.prefetch_entries and not admission.is_too_little(waiting)
