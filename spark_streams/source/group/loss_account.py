"""What the streams hold, held against what was read of them: the difference is lost. The arithmetic is in account."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from spark_streams.ids import StreamId
from spark_streams.source.entry_count import Count
from spark_streams.source.entry_range import EntryRange
from spark_streams.source.group.account import Asks, Balance, Books, balance
from spark_streams.source.group.count_entries import count_read
from spark_streams.source.group.data_loss import DataLoss
from spark_streams.source.group.finding import Finding, Kind
from spark_streams.source.group.group_state import GroupState, Reserved
from spark_streams.source.group.subscription import Subscription
from spark_streams.source.offset import Offset
from spark_streams.wire.server import Server
from spark_streams.wire.xinfo import StreamState


class LossAccount:
    """The account of one query. subscription: what is read, and which groups this run has made. counts: what is known
    of each stream, at its group's position."""

    def __init__(self, losses: DataLoss, subscription: Subscription) -> None:
        self._losses = losses
        self._subscription = subscription
        self.counts: dict[str, Count] = {}
        self._at: dict[str, StreamId] = {}  # the positions that `counts` are of, if nobody has read since
        self._jumps: dict[str, StreamId] = {}  # account.Balance
        self._unlogged = Counter[str]()  # losses that `counts` has, and no offset yet

    def hold(
        self,
        server: Server,
        begin: Offset,
        heads: Mapping[str, StreamState],
        states: dict[str, GroupState],
        above: Mapping[str, int] | None,
    ) -> None:
        """Hold what the streams have against what was read of them. above: how many entries are reserved above the
        checkpoint, where only that is known; None: go on from what this run knows. Raises DataLossError."""
        for stream, state in states.items():
            books = self._books(begin, stream, heads[stream], state, above)
            found = balance(books)
            if isinstance(found, Asks):
                found = balance(books, count_read(server, stream, heads[stream], state.last_delivered))
            assert isinstance(found, Balance)  # it asks once
            if found.lost:
                self._lost(stream, found.lost, state.last_delivered)
            self._enter(stream, state.last_delivered, found)
            if found.count is not None and (_is_unknown(state, found.count) or state.stands is not None):
                states[stream] = state._replace(entries_read=found.count.read)

    def _books(
        self, begin: Offset, stream: str, head: StreamState, state: GroupState, above: Mapping[str, int] | None
    ) -> Books:
        made = self._subscription.made.get(stream)
        return Books(
            head,
            state,
            self.counts.get(stream),
            self._at.get(stream),
            begin.counts.get(stream),
            begin[stream],
            None if above is None else above.get(stream, 0),
            self._unlogged[stream],
            bool(begin.token),
            state.is_shared(self._subscription.member),
            made is not None and made.position == state.last_delivered and made.amid,
            self._jumps.get(stream),
        )

    def _enter(self, stream: str, position: StreamId, found: Balance) -> None:
        self.forget([stream])
        if found.count is not None:
            self.counts[stream], self._at[stream] = found.count, position
        if found.jumps_at is not None:
            self._jumps[stream] = found.jumps_at

    def logged(self) -> None:
        """An offset has what is counted so far."""
        self._unlogged.clear()

    def know(self, counts: Mapping[str, Count]) -> None:
        """What the checkpoint knows, of streams that this run knows nothing of."""
        self.counts = {**counts, **self.counts}

    def share(self, stream: str) -> None:
        """Others have read from its group, too."""
        known = self.counts.get(stream)
        if known is not None:
            self.counts[stream] = known._replace(shared=True)

    def forget(self, streams: Iterable[str]) -> None:
        """What was read of these up to where their groups stand is not known."""
        for stream in streams:
            self.counts.pop(stream, None)
            self._at.pop(stream, None)
            self._jumps.pop(stream, None)

    def at_checkpoint(self, remaining: Mapping[str, int]) -> dict[str, Count]:
        """What is known, for the checkpoint. remaining: how many entries of each stream are reserved above it."""
        return {
            stream: known._replace(read=known.read - remaining.get(stream, 0)) for stream, known in self.counts.items()
        }

    def took(self, ranges: Iterable[EntryRange]) -> None:
        """These were delivered, or are to be read. How many entries an estimated range has, its tasks tell."""
        for entries in ranges:
            self._at.pop(entries.stream, None)
            known = self.counts.get(entries.stream)
            if known is not None and entries.counted:
                self.counts[entries.stream] = known._replace(read=known.read + entries.count)
            elif known is not None:
                self.counts[entries.stream] = known._replace(before=True)

    def reserved(self, heads: Mapping[str, StreamState], before: Mapping[str, GroupState], reserved: Reserved) -> None:
        """These were delivered. What a stream held at the last look and the group was not given when it had come to
        the end of that is lost. A group that got nothing has come to the end; a bookmark (noAck) has come to where the
        batch ends, above which an AvailableNow run does not read. heads, before: the streams and the groups at the last
        look. Raises DataLossError."""
        self.took(reserved.ranges)
        ends = {entries.stream: entries.last for entries in reserved.ranges}
        for stream, state in reserved.states.items():
            head, known = heads[stream], self._moved(stream, state.last_delivered)
            if state.is_shared(self._subscription.member):
                self.share(stream)
                continue
            end = head.last if state.stands is None else state.last_delivered
            if ends.get(stream, end) == head.last and known is not None and not known.before:
                self._all_read(stream, known, head.added, before[stream].last_delivered)

    def _moved(self, stream: str, position: StreamId) -> Count | None:
        """The group may stand elsewhere: what the server had yet to count as read, it has counted now."""
        known = self.counts.get(stream)
        if position > self._jumps.get(stream, position):
            del self._jumps[stream]
            if known is not None:
                known = self.counts[stream] = known._replace(missed=0)
        return known

    def _all_read(self, stream: str, known: Count, added: int | None, above: StreamId) -> None:
        if added is None:
            return
        lost = max(0, added - known.read)
        if lost:
            self._lost(stream, lost, above)
        self.counts[stream] = known._replace(read=added, missed=known.missed + lost)

    def _lost(self, stream: str, lost: int, above: StreamId) -> None:
        self._losses.report(Finding(Kind.ENTRIES_LOST, stream, logged=above, lost=lost))
        self._unlogged[stream] += lost


def _is_unknown(state: GroupState, count: Count) -> bool:
    """Whether the group is told what it has read. If others read from it, too, only the server may say so."""
    return state.entries_read is None and not count.shared
