"""Number of entries that the tasks of a batch have read, if it was an estimate when the batch was planned.

The batch's offset then has the count at the batch's begin (`before`). Tasks write a note for each range that they have
read to its end. After the batch is committed, its group is set to the sum (group.bookmarks), and the notes are removed:
notes and group have the same number. If a run gives up noAck, it moves the group before an offset has the sum, and
keeps these notes until the next batch is committed. Tasks that Spark ends early (a LIMIT) write no note. The number is
unknown then, and the remaining entries of the stream are counted.

Tasks do not notice entries that were trimmed before they read them. Such entries are lost if more entries have left the
stream than it had below the batch: then the entries that it still holds are counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from spark_streams.model.ids import StreamId
from spark_streams.source.findings.balance import held_above
from spark_streams.source.findings.count_entries import count_read
from spark_streams.source.findings.data_loss import DataLoss
from spark_streams.source.findings.finding import Finding, Kind
from spark_streams.source.findings.group_state import GroupState
from spark_streams.source.membership import Membership
from spark_streams.source.notes.task_notes import fetch_rows_read
from spark_streams.source.offset import Count, Offset
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.xinfo import StreamState


@dataclass(frozen=True)
class RowsRead:
    """cached_counts: counts of this run at the groups' positions, by stream."""

    server: Server
    member: Membership
    losses: DataLoss
    cached_counts: Mapping[str, Count]

    def with_counts(
        self, offset: Offset, heads: Mapping[str, StreamState], states: Mapping[str, GroupState | None]
    ) -> Offset:
        """Return the offset of a committed batch with the counts at its end, if they are known. heads, states: current
        states of the streams and groups. Raises DataLossError, ServerError."""
        counts = {}
        for stream, begun in offset.counts.items():
            if begun.before:
                read = self._read(offset, stream, begun, heads.get(stream), states.get(stream))
                if read is not None:
                    counts[stream] = begun._replace(read=read, missed=0, before=False)
        return replace(offset, counts={**offset.counts, **counts}) if counts else offset

    def _read(
        self, offset: Offset, stream: str, begun: Count, head: StreamState | None, state: GroupState | None
    ) -> int | None:
        cached_count, position = self.cached_counts.get(stream), offset[stream]
        if cached_count is not None and not cached_count.before:
            return cached_count.read
        if state is not None and state.counted and state.last_delivered == position:
            return state.entries_read
        noted_counts = fetch_rows_read(self.server, self.member, stream, offset.token)
        read = _sum(begun.read, offset, stream, noted_counts)
        if read is None or head is None or head.added is None or held_above(head, position) is not None:
            return read
        if head.added - head.length > begun.read:
            counted = count_read(self.server, stream, head, position)
            if counted is not None and counted > read:
                above = offset.shares[stream].after
                self.losses.report(Finding(Kind.ENTRIES_LOST, stream, above=above, lost=counted - read))
                return counted
        return read


def _sum(read: int, offset: Offset, stream: str, counts: Mapping[tuple[StreamId, StreamId], int]) -> int | None:
    """Add the counts of ranges to the entries that were read before the batch. Return None if the ranges do not cover
    the batch, or if it has no entry of the stream: then `read` is of the begin of an earlier batch."""
    if stream not in offset.shares:
        return None
    position = offset.shares[stream].after
    for (after, last), count in sorted(counts.items()):
        if after != position:
            return None
        position, read = last, read + count
    return read if position == offset[stream] else None
