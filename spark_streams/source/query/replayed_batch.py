"""Replay of a batch after a restart: the entries that its offset names (FACTS S5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from spark_streams.errors import DataLossError, GroupMissingError
from spark_streams.source.group.compare import is_older
from spark_streams.source.group.findings import Finding, GroupUse, Kind
from spark_streams.source.group.state import fetch_looks
from spark_streams.source.limits import Limits
from spark_streams.source.membership import Membership
from spark_streams.source.offset import Offset
from spark_streams.source.part import ALL, Part, pending_parts
from spark_streams.source.pending_list import pending_ranges
from spark_streams.source.range import Range
from spark_streams.wire.connection.server import Server


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
        """Return what tasks read of the batch, old entries first, and what is lost. If the checkpoint is an older copy,
        a strict query reads nothing. is_cut: the entries of the batch were set aside, so its tasks read none.

        Raises GroupMissingError, DataLossError."""
        older = self._older_checkpoint(begin, end)
        if is_cut or (older and self.is_strict):
            return [], older
        old = [entries for stream in end.taken_from for entries in end.old.get(stream, ())]
        new = [end.new[stream] for stream in end.taken_from if stream in end.new]
        read = [*map(self._pending, old), *(self._new(entries, end) for entries in new)]
        lost = [finding for _, finding in read if finding is not None]
        return [part for parts, _ in read for part in parts], [*older, *lost]

    def _older_checkpoint(self, begin: Offset, end: Offset) -> list[Finding]:
        """Return a finding for each stream that shows an older copy of the checkpoint: the commit mark knows a later
        batch, or another one with this number. If it knows this batch, only Spark's commit log has lost it: it is read
        again. For a first batch Spark passes where the query would begin now (S2): that is no part of the
        checkpoint."""
        streams = [s for s in end.taken_from if end.pending(s) and (s in begin.at or s in end.at)]
        findings = []
        for stream, look in fetch_looks(self.server, self.member, streams).items():
            mark, at = look.mark, end.at[stream]
            if look.group is None or mark == at.mark:
                continue
            if is_older(at, look) or (begin.token and stream in begin.at and is_older(begin.at[stream], look)):
                use = GroupUse.SHARED if look.group.others else GroupUse.ALONE
                position = look.group.last_delivered
                # The batch is read again whatever the group's position is, so the query goes on at its end.
                findings.append(
                    Finding(Kind.CHECKPOINT_OLDER, stream, use, end[stream], position, mark.id if mark else None)
                )
        return findings

    def _new(self, entries: Range, end: Offset) -> tuple[list[Part], Finding | None]:
        if not end.pending(entries.stream):
            return [Part(entries, ALL)], None  # the stream itself has the batch
        if end.at[entries.stream].read is None:
            return self._pending(entries)
        # The query was alone: the stream itself has the batch, whatever has become of the pending list.
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
