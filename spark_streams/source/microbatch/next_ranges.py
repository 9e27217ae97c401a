"""Ranges of the next batch of streams whose groups are bookmarks (noAck). The server delivers nothing: the query
decides where a batch ends.

If a batch takes all entries of a stream, it ends at the stream's last ID, and the account knows their number: one task
reads them. If it takes only a part, or minPartitions divides it, a scratch group finds the ends (scratch_group.py).
That costs the server about as much as sending the entries, so an unlimited batch is not divided without need.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_streams.source.entry_range import EntryRange, entries_per_stream
from spark_streams.source.findings.group_state import GroupState, Reserved
from spark_streams.source.limits import Limits
from spark_streams.source.membership import Membership
from spark_streams.source.microbatch.admission import ENDLESS, Admission
from spark_streams.source.microbatch.scratch_group import Wanted, exact_ranges
from spark_streams.source.partitioning import task_size
from spark_streams.source.quota import BatchQuota
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
        wanted: dict[str, Wanted] = {}
        for stream, limit in allowed.items():
            last = self.admission.end_of(stream, heads).last
            if limit > 0 and states[stream].last_delivered < last:
                total = backlog[stream] if backlog[stream] < ENDLESS else None
                wanted[stream] = Wanted(states[stream].last_delivered, last, limit, total)
        size = self._task_size(wanted)
        whole = {
            stream: [EntryRange(stream, entries.after, entries.last, entries.total, owned=True)]
            for stream, entries in wanted.items()
            if entries.total is not None
            and entries.is_whole
            and (self.ordered or self.admission.min_partitions is None or entries.total <= size)
        }
        parts = {stream: entries for stream, entries in wanted.items() if stream not in whole}
        found = whole | exact_ranges(server, self.member, parts, min(self.limits.reserve_step, size), self.limits)
        ranges = [entries for stream in wanted for entries in found[stream] if entries.count]
        ends = {stream: found[stream][-1].last if found[stream] else wanted[stream].last for stream in wanted}
        groups = {stream: states[stream]._replace(last_delivered=end) for stream, end in ends.items()}
        return Reserved(ranges, groups), quota.without(entries_per_stream(ranges))

    def _task_size(self, wanted: Mapping[str, Wanted]) -> int:
        """Return how many entries a task reads."""
        counts = {stream: min(entries.limit, entries.total or entries.limit) for stream, entries in wanted.items()}
        ranges = [EntryRange(s, wanted[s].after, wanted[s].last, count, owned=True) for s, count in counts.items()]
        return task_size(ranges, self.admission.size(list(counts.values())), self.limits)
