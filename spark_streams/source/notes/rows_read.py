"""How many entries the tasks of a batch have read, if that was an estimate when the batch was made.

The batch's offset then has the count of where the batch began (`before`). The tasks leave a note for each range that
they have read to its end, and once the batch is committed its group is set to the sum (group.bookmarks). So either
tells; notes are removed after that. A run that gives noAck up moves the group on before an offset has the sum: it
leaves these notes until the next batch is committed. Tasks whose rows nobody wants (a LIMIT) leave none: then the
number is not known, and what is left in the stream is counted.

Of entries that were trimmed before a task read them no task knows. They are missed if more entries have left the stream
than lay below the batch: then those that it still holds are counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from spark_streams.model.ids import StreamId
from spark_streams.source.findings.account import held_above
from spark_streams.source.findings.count_entries import count_read
from spark_streams.source.findings.data_loss import DataLoss
from spark_streams.source.findings.finding import Finding, Kind
from spark_streams.source.findings.group_state import GroupState
from spark_streams.source.membership import Membership
from spark_streams.source.notes.task_notes import ranges_read
from spark_streams.source.offset import Count, Offset
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.xinfo import StreamState


@dataclass(frozen=True)
class RowsRead:
    """known: what this run knows of the streams at their groups' positions."""

    server: Server
    member: Membership
    losses: DataLoss
    known: Mapping[str, Count]

    def counted(
        self, offset: Offset, heads: Mapping[str, StreamState], states: Mapping[str, GroupState | None]
    ) -> Offset:
        """The offset of a committed batch with the counts of where it ends, as far as they can be told. heads, states:
        the streams, and the groups as they stand. Raises DataLossError, ServerError."""
        found = {}
        for stream, begun in offset.counts.items():
            if begun.before:
                read = self._read(offset, stream, begun, heads.get(stream), states.get(stream))
                if read is not None:
                    found[stream] = begun._replace(read=read, missed=0, before=False)
        return replace(offset, counts={**offset.counts, **found}) if found else offset

    def _read(
        self, offset: Offset, stream: str, begun: Count, head: StreamState | None, state: GroupState | None
    ) -> int | None:
        known, position = self.known.get(stream), offset[stream]
        if known is not None and not known.before:
            return known.read
        if state is not None and state.counted and state.last_delivered == position:
            return state.entries_read
        noted = ranges_read(self.server, self.member, stream, offset.token)
        read = _sum(begun.read, offset, stream, noted)
        if read is None or head is None or head.added is None or held_above(head, position) is not None:
            return read
        if head.added - head.length > begun.read:
            there = count_read(self.server, stream, head, position)
            if there is not None and there > read:
                above = offset.shares[stream].after
                self.losses.report(Finding(Kind.ENTRIES_LOST, stream, above=above, lost=there - read))
                return there
        return read


def _sum(read: int, offset: Offset, stream: str, found: Mapping[tuple[StreamId, StreamId], int]) -> int | None:
    """read: before the batch; found: how many entries were read of ranges. None if these are not the whole batch, or
    the batch has none of the stream: then `read` is of where an earlier one began."""
    if stream not in offset.shares:
        return None
    at = offset.shares[stream].after
    for (after, last), count in sorted(found.items()):
        if after != at:
            return None
        at, read = last, read + count
    return read if at == offset[stream] else None
