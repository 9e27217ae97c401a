"""Replay of a batch after a restart: the entries that its offset names (FACTS S5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from spark_streams.errors import DataLossError, GroupMissingError
from spark_streams.source.entry_range import EntryRange
from spark_streams.source.group.compare import is_older
from spark_streams.source.group.findings import Finding, GroupUse, Kind
from spark_streams.source.group.remedies import DataLoss
from spark_streams.source.group.state import fetch_looks
from spark_streams.source.limits import Limits
from spark_streams.source.membership import Membership
from spark_streams.source.offset import Offset, Range
from spark_streams.source.pending_list import PendingRange, pending_ranges
from spark_streams.wire.connection.server import Server


@dataclass(frozen=True)
class Replay:
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
        if end.no_ack:
            return
        streams = [stream for stream in end.taken_from if stream in begin.at or stream in end.at]
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

    def ranges(self, end: Offset) -> list[EntryRange]:
        """Return the ranges of the batch that ends here, those of the second backlog first. Raises DataLossError."""
        old: list[EntryRange] = []
        new: list[EntryRange] = []
        for stream in end.taken_from:
            for part in end.old.get(stream, ()):
                found = self._still_pending(stream, part, spare=False)
                self._compare(stream, part, found)
                old += found
            if stream in end.new:
                new += self._new(stream, end.new[stream], end)
        return old + new

    def _new(self, stream: str, part: Range, end: Offset) -> list[EntryRange]:
        whole = EntryRange(stream, part.after, part.last, part.count, owned=True)
        if end.no_ack:
            return [whole]  # nothing is pending: the stream itself has the batch
        if end.at[stream].read is None:
            found = self._still_pending(stream, part, spare=False)
            self._compare(stream, part, found)
            return found
        # The query was alone: the stream itself has the batch, whatever has become of the pending list.
        found = self._still_pending(stream, part, spare=True)
        if sum(entries.count for entries in found) == part.count:
            return found
        return [whole]

    def _still_pending(self, stream: str, part: Range, spare: bool) -> list[EntryRange]:
        """Return the entries that are still pending. If the group is missing, raise GroupMissingError or DataLossError,
        unless losses are allowed or the stream has the entries (`spare`)."""
        pending = [PendingRange.of(stream, part)]
        try:
            return pending_ranges(self.server, self.member, pending, self.size([part.count]), limits=self.limits)
        except (GroupMissingError, DataLossError):
            if not spare and not self.losses.allowed:
                raise
            return []

    def _compare(self, stream: str, part: Range, found: Sequence[EntryRange]) -> None:
        missing = part.count - sum(entries.count for entries in found)
        if missing > 0:
            finding = Finding(Kind.ENTRIES_LOST, stream, above=part.after, position=part.last, lost=missing)
            self.losses.report(replace(finding, detail=f"of a batch of {part.count}"))
