"""Ranges of the next batch of streams whose groups are bookmarks (noAck). The server delivers nothing: the query
decides where a batch ends.

If a batch takes all entries of a stream, it ends at the stream's last ID, and the account knows their number: one
task reads them. If it takes only a part, or minPartitions divides it, a scratch group finds the ends
(scratch_group.py). That costs the server about as much as sending the entries, so an unlimited batch is not divided
without need.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_streams.model.ids import StreamId
from spark_streams.source.group.state import GroupState, Reserved
from spark_streams.source.limits import Limits
from spark_streams.source.membership import Membership
from spark_streams.source.part import ALL, Part, entries_per_stream
from spark_streams.source.partitioning import task_size
from spark_streams.source.quota import BatchQuota
from spark_streams.source.range import Range
from spark_streams.source.trigger.admission import ENDLESS, Admission
from spark_streams.source.trigger.scratch_group import exact_ranges
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.xinfo import StreamState


@dataclass(frozen=True)
class NextRanges:
    """Chooses the ranges of one batch. ordered: one task reads all entries of a stream."""

    member: Membership
    admission: Admission
    ordered: bool
    limits: Limits

    def new_entries(
        self,
        server: Server,
        heads: Mapping[str, StreamState],
        states: Mapping[str, GroupState],
        backlog: Mapping[str, int],
        quota: BatchQuota,
        turn: int,
    ) -> tuple[Reserved, BatchQuota]:
        """Return the ranges of each stream's backlog that the quota admits, the groups as if they had delivered these
        entries, and the remaining quota. Raises ServerError and its subclasses."""
        allowed = quota.divide(backlog, turn)
        between = [
            Range(stream, states[stream].last_delivered, self.admission.end_of(stream, heads).last, count)
            for stream, count in allowed.items()
        ]
        wanted = [entries for entries in between if entries.count and not entries.is_empty]
        whole = {entries.stream for entries in wanted if entries.count == backlog[entries.stream] < ENDLESS}
        counts = [entries.count for entries in wanted]
        size = task_size(sum(counts), self.admission.size(counts), self.limits)
        is_divided = not self.ordered and self.admission.min_partitions is not None
        found = {
            entries.stream: [entries]
            for entries in wanted
            if entries.stream in whole and not (is_divided and entries.count > size)
        }
        others = [entries for entries in wanted if entries.stream not in found]
        step = min(self.limits.reserve_step, size)
        found |= exact_ranges(server, self.member, others, whole, step, self.limits)
        ranges = [entries for of in wanted for entries in found[of.stream] if entries.count]
        ends = {of.stream: found[of.stream][-1].last if found[of.stream] else of.last for of in wanted}
        parts = [Part(entries, ALL) for entries in ranges]
        counts_of = entries_per_stream(parts)
        groups = {stream: _delivered(states[stream], end, counts_of[stream]) for stream, end in ends.items()}
        return Reserved(parts, groups, {}), quota.without(entries_per_stream(parts))


def _delivered(group: GroupState, position: StreamId, count: int) -> GroupState:
    """Return the group as if it had delivered this number of entries, up to a position."""
    read = None if group.entries_read is None else group.entries_read + count
    return group._replace(last_delivered=position, entries_read=read)
