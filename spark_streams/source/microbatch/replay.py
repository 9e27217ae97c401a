"""Replay of a batch after a restart: its pending entries, compared with the numbers in its offset (FACTS S5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from spark_streams.errors import DataLossError, GroupMissingError
from spark_streams.model.ids import MAX_ID, MIN_ID, StreamId
from spark_streams.source.entry_range import EntryRange
from spark_streams.source.findings.data_loss import DataLoss
from spark_streams.source.findings.finding import Finding, Kind
from spark_streams.source.limits import Limits
from spark_streams.source.membership import Membership
from spark_streams.source.offset import Offset, Share
from spark_streams.source.pending_list import PendingRange, pending_ranges
from spark_streams.wire.connection.server import Server


@dataclass(frozen=True)
class Replay:
    """size: entries a task, for a batch of so many; narrowed: the batch is what is left of it
    (source.recovery.poison_batch)."""

    server: Server
    member: Membership
    losses: DataLoss
    size: Callable[[Sequence[int]], int]
    limits: Limits
    narrowed: bool = False

    def ranges(self, end: Offset) -> list[EntryRange]:
        """Return the ranges of the batch that ends here, claimed entries first. Raises DataLossError."""
        all_ranges: list[EntryRange] = []
        for stream, claims in end.claimed.items():
            for claimed in claims:
                ranges = self._still_pending(PendingRange(stream, MAX_ID, MIN_ID, claimed.consumer), claimed.count)
                if not self.narrowed:
                    self._compare(stream, claimed.count, ranges, f"that {claimed.consumer!r} had claimed")
                all_ranges += ranges
        for stream, held in end.shares.items():
            if held.after < end[stream]:
                if end.no_ack:
                    # Nothing is pending: the stream itself has the batch.
                    all_ranges.append(EntryRange(stream, held.after, end[stream], held.count, owned=True))
                else:
                    all_ranges += self._share(stream, held.after, end[stream], held)
        return all_ranges

    def _share(self, stream: str, after: StreamId, last: StreamId, held: Share) -> list[EntryRange]:
        pending = self._still_pending(PendingRange(stream, last, after), held.count, held.owned and not self.narrowed)
        if self.narrowed:
            return pending
        if held.owned:
            # The range was all ours: the stream itself has the batch, whatever has become of the pending list.
            if sum(entries.count for entries in pending) == held.count:
                return [replace(entries, owned=True) for entries in pending]
            return [EntryRange(stream, after, last, held.count, owned=True)]
        self._compare(stream, held.count, pending, f"above {after} up to {last}")
        return pending

    def _still_pending(self, ours: PendingRange, count: int, spare: bool = False) -> list[EntryRange]:
        """Return the entries that are still pending. If the group is missing, raise GroupMissingError or DataLossError,
        unless losses are allowed or the stream has the entries (`spare`)."""
        try:
            return pending_ranges(self.server, self.member, [ours], self.size([count]), limits=self.limits)
        except (GroupMissingError, DataLossError):
            if not spare and not self.losses.allowed:
                raise
            return []

    def _compare(self, stream: str, count: int, ranges: Sequence[EntryRange], origin: str) -> None:
        missing = count - sum(entries.count for entries in ranges)
        if missing > 0:
            detail = f"of a batch of {count} {origin} of group {self.member.group!r}"
            self.losses.report(Finding(Kind.PENDING_TAKEN, stream, lost=missing, detail=detail))
