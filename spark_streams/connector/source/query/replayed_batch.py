"""Replay of a batch after a restart: the entries that its offset names (FACTS S5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from spark_streams.connector.errors import DataLossError, GroupMissingError
from spark_streams.connector.source.group.compare import NOTHING_ABOVE, at_position, compare, is_older
from spark_streams.connector.source.group.findings import Finding, Kind
from spark_streams.connector.source.group.state import Look, fetch_looks
from spark_streams.connector.source.limits import Limits
from spark_streams.connector.source.membership import Membership
from spark_streams.connector.source.offset import Offset
from spark_streams.connector.source.part import ALL, Part, pending_parts
from spark_streams.connector.source.pending_list import pending_ranges
from spark_streams.connector.source.range import Range
from spark_streams.connector.wire.connection.server import Server

# If a stream shows one of these, the batch of the offset is not the one that the server has.
_OTHER_BATCH = {Kind.STREAM_MISSING, Kind.STREAM_REPLACED, Kind.CHECKPOINT_OLDER, Kind.SERVER_RESTORED}


@dataclass(frozen=True)
class ReplayedBatch:
    """A batch that an earlier run has made. is_strict: an error is raised for what is lost (failOnDataLoss); size:
    entries a task, for a batch of so many."""

    server: Server
    member: Membership
    is_strict: bool
    size: Callable[[Sequence[int]], int]
    limits: Limits

    def read(self, begin: Offset, end: Offset, is_cut: bool) -> tuple[list[Part], list[Finding]]:
        """Return what tasks read of the batch, old entries first, and what is lost. If the server does not have the
        batch any more, or the checkpoint is an older copy, a strict query reads nothing. is_cut: the entries of the
        batch were set aside, so its tasks read none.

        Raises GroupMissingError, DataLossError."""
        looks = fetch_looks(self.server, self.member, end.taken_from)
        wrong = [finding for s, look in looks.items() if (finding := self._compared(s, begin, end, look)) is not None]
        older = [replace(finding, lost=0) for finding in wrong if finding.kind is Kind.CHECKPOINT_OLDER]
        if is_cut or (wrong and self.is_strict):
            return [], wrong if self.is_strict else older
        old = [entries for stream in end.taken_from for entries in end.old.get(stream, ())]
        new = [end.new[stream] for stream in end.taken_from if stream in end.new]
        read = [*map(self._pending, old), *(self._new(entries, end, looks[entries.stream]) for entries in new)]
        lost = [finding for _, finding in read if finding is not None]
        return [part for parts, _ in read for part in parts], [*older, *lost]

    def _compared(self, stream: str, begin: Offset, end: Offset, look: Look) -> Finding | None:
        """Return what says that the server does not have this batch, as a fresh batch is compared with its position at
        the end of this one. If the commit mark knows this batch, only Spark's commit log has lost it: it is read again.
        For a first batch Spark passes where the query would begin now (S2): that is no part of the checkpoint."""
        at = end.at[stream]
        if not end.pending(stream):  # without a pending list, the group is no part of the batch
            look = look._replace(mark=None, group=look.group and at_position(at, look.group))
        if look.mark == at.mark:
            look = look._replace(mark=None)
        elif begin.token and stream in begin.at and is_older(begin.at[stream], look.mark):
            at = begin.at[stream]
        finding = compare(stream, at, look, NOTHING_ABOVE)
        if finding is None or finding.kind not in _OTHER_BATCH:
            return None
        # The batch is read again whatever the group's position is, so the query goes on at its end.
        return replace(finding, above=end[stream])

    def _new(self, entries: Range, end: Offset, look: Look) -> tuple[list[Part], Finding | None]:
        """Return what is read of a range. If the query is alone, and was, the stream itself has the batch, whatever has
        become of the pending list. Others may have claimed entries of it, unless they were acknowledged with it."""
        if not end.pending(entries.stream):
            return [Part(entries, ALL)], None
        others = look.group is not None and (look.group.others or look.group.released)
        if (others and look.mark != end.at[entries.stream].mark) or end.at[entries.stream].read is None:
            return self._pending(entries)
        found = self._still_pending(entries, spare=True)
        if sum(pending.count for pending in found) == entries.count:
            return pending_parts(found), None
        return [Part(entries, ALL)], None

    def _pending(self, entries: Range) -> tuple[list[Part], Finding | None]:
        """Return what is pending of a range, and a finding if some is not."""
        found = self._still_pending(entries, spare=False)
        missing = entries.count - sum(pending.count for pending in found)
        finding = None
        if missing > 0:
            lost = Finding(Kind.ENTRIES_LOST, entries.stream, above=entries.after, position=entries.last, lost=missing)
            finding = replace(lost, detail=f"of a batch of {entries.count}")
        return pending_parts(found), finding

    def _still_pending(self, entries: Range, spare: bool) -> list[Range]:
        """Return the entries that are still pending. If the group is missing, raise GroupMissingError or DataLossError,
        unless losses are allowed or the stream has the entries (`spare`)."""
        try:
            return pending_ranges(self.server, self.member, [entries], self.size([entries.count]), limits=self.limits)
        except (GroupMissingError, DataLossError):
            if not spare and self.is_strict:
                raise
            return []
