"""Replay of a batch after a restart: the entries that its offset names (FACTS S5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from spark_streams.errors import DataLossError, GroupMissingError
from spark_streams.source.group.compare import is_older
from spark_streams.source.group.findings import Finding, GroupUse, Kind
from spark_streams.source.group.remedies import DataLoss
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
    """size: entries a task, for a batch of so many."""

    server: Server
    member: Membership
    losses: DataLoss
    size: Callable[[Sequence[int]], int]
    limits: Limits

    def require_newest(self, begin: Offset, end: Offset) -> None:
        """Report an older copy of the checkpoint: the commit mark knows a later batch, or another one with this number.
        If it knows this batch, only Spark's commit log has lost it: it is read again. For a first batch Spark passes
        where the query would begin now (S2): that is no part of the checkpoint.

        Raises DataLossError."""
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
        self.losses.report(*findings)

    def parts(self, end: Offset) -> list[Part]:
        """Return what tasks read of the batch that ends here, old entries first. Raises DataLossError."""
        old = [entries for stream in end.taken_from for entries in end.old.get(stream, ())]
        new = [end.new[stream] for stream in end.taken_from if stream in end.new]
        return [*self._pending(old), *(part for entries in new for part in self._new(entries, end))]

    def _new(self, entries: Range, end: Offset) -> list[Part]:
        if not end.pending(entries.stream):
            return [Part(entries, ALL)]  # the stream itself has the batch
        if end.at[entries.stream].read is None:
            return self._pending([entries])
        # The query was alone: the stream itself has the batch, whatever has become of the pending list.
        found = self._still_pending(entries, spare=True)
        if sum(pending.count for pending in found) == entries.count:
            return pending_parts(found)
        return [Part(entries, ALL)]

    def _pending(self, ranges: Sequence[Range]) -> list[Part]:
        """Return what is pending of these ranges, and report what is not. Raises DataLossError."""
        parts: list[Part] = []
        for entries in ranges:
            found = self._still_pending(entries, spare=False)
            missing = entries.count - sum(pending.count for pending in found)
            if missing > 0:
                finding = Finding(
                    Kind.ENTRIES_LOST, entries.stream, above=entries.after, position=entries.last, lost=missing
                )
                self.losses.report(replace(finding, detail=f"of a batch of {entries.count}"))
            parts += pending_parts(found)
        return parts

    def _still_pending(self, entries: Range, spare: bool) -> list[Range]:
        """Return the entries that are still pending. If the group is missing, raise GroupMissingError or DataLossError,
        unless losses are allowed or the stream has the entries (`spare`)."""
        try:
            return pending_ranges(self.server, self.member, [entries], self.size([entries.count]), limits=self.limits)
        except (GroupMissingError, DataLossError):
            if not spare and not self.losses.allowed:
                raise
            return []
