"""What the streams hold, held against what was read of them: the difference is lost.

The arithmetic is in entry_counts; here it meets the groups, which may be shared, made ahead of their streams, or read
by an earlier run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from spark_streams.ids import StreamId
from spark_streams.source.entry_count import Count
from spark_streams.source.group.count_entries import count_read
from spark_streams.source.group.data_loss import DataLoss, passed_over
from spark_streams.source.group.entry_counts import Counts, held_above
from spark_streams.source.group.group_state import GroupState, Reserved
from spark_streams.source.group.subscription import Subscription
from spark_streams.source.offset import Offset
from spark_streams.wire.server import Server
from spark_streams.wire.xinfo import StreamState


class LossAccount:
    """The account of one query. subscription: what is read, and which groups this run has made; counts: what is known
    of each stream."""

    def __init__(self, losses: DataLoss, subscription: Subscription) -> None:
        self._losses = losses
        self._subscription = subscription
        self.counts = Counts()
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
            head = heads[stream]
            self.counts.moved(stream, state.last_delivered)
            self._recount(server, begin, stream, head, state, above)
            self._leave_out_what_is_below(server, stream, head, state)
            lost = self.counts.lost(stream, head, state.last_delivered)
            if lost:
                self._lost(stream, lost, state.last_delivered)
            self.counts.balance(stream, head, state)
            known = self.counts.of.get(stream)
            if known is not None and (state.entries_read is None or state.stands is not None):
                states[stream] = state._replace(entries_read=known.read)

    def logged(self) -> None:
        """An offset has what is counted so far."""
        self._unlogged.clear()

    def forget(self, streams: Sequence[str]) -> None:
        """What was read of these up to where their groups stand is not known."""
        for stream in streams:
            self.counts.forget(stream)

    def at_checkpoint(self, remaining: Mapping[str, int]) -> dict[str, Count]:
        """What is known, for the checkpoint. remaining: how many entries of each stream are reserved above it."""
        return {
            stream: known._replace(read=known.read - remaining.get(stream, 0))
            for stream, known in self.counts.of.items()
        }

    def took(self, heads: Mapping[str, StreamState], before: Mapping[str, GroupState], reserved: Reserved) -> None:
        """These were delivered. What a stream held at the last look and the group was not given when it had come to
        the end of that is lost. heads, before: the streams and the groups at the last look. Raises DataLossError."""
        self.counts.took(reserved.ranges)
        ends = {entries.stream: entries.last for entries in reserved.ranges}
        for stream, state in reserved.states.items():
            self.counts.moved(stream, state.last_delivered)
            head = heads[stream]
            if state.is_shared(self._subscription.member):
                self.counts.share(stream)
            elif ends.get(stream, head.last) == head.last and not self._is_estimated(stream):
                self._all_read(stream, head, before[stream].last_delivered)

    def _is_estimated(self, stream: str) -> bool:
        known = self.counts.of.get(stream)
        return known is not None and known.before

    def _all_read(self, stream: str, head: StreamState, above: StreamId) -> None:
        known, added = self.counts.of.get(stream), head.added
        if known is None or added is None:
            return
        if added > known.read:
            self._lost(stream, added - known.read, above)
        self.counts.of[stream] = known._replace(read=added, missed=known.missed + max(0, added - known.read))

    def _lost(self, stream: str, lost: int, above: StreamId) -> None:
        passed_over(self._losses, self._subscription.member, stream, lost, above)
        self._unlogged[stream] += lost

    def _recount(
        self,
        server: Server,
        begin: Offset,
        stream: str,
        head: StreamState,
        state: GroupState,
        above: Mapping[str, int] | None,
    ) -> None:
        """What is known to have been read up to the group's position."""
        known = before = self.counts.of.get(stream)
        if known is not None and known.before:  # the tasks have told since
            known = begin.counts.get(stream)
        if known is not None and head.added is not None and head.added < known.added:
            self.counts.forget(stream)  # it was of another stream under this name, or some were lost unread
            known = None
        if head.added is None:
            self.counts.forget(stream)
        elif state.is_shared(self._subscription.member):
            read = None if state.entries_read is None else state.entries_read + (known.missed if known else 0)
            if read is not None and before is not None and read < before.read:
                # A replica of Redis 7.0 became the master: it was not told what groups have read (R90).
                read = count_read(server, stream, head, state.last_delivered)
            if read is not None and state.entries_read is not None:
                self.counts.of[stream] = Count(read, head.added, read - state.entries_read, shared=True)
            else:
                self.counts.forget(stream)  # nobody can tell, until the group has come to the end
        elif known is None or known.shared or known.before:
            self._first_count(server, begin, stream, head, state, known)
        elif above is None:
            self.counts.of[stream] = known
        else:
            logged = begin.counts.get(stream, known)
            if not (logged.shared or logged.before):
                known = logged._replace(read=logged.read + above.get(stream, 0) + self._unlogged[stream])
            self.counts.of[stream] = known

    def _first_count(
        self,
        server: Server,
        begin: Offset,
        stream: str,
        head: StreamState,
        state: GroupState,
        known: Count | None,
    ) -> None:
        position = state.last_delivered
        missed = 0 if known is None else known.missed
        read = None if state.entries_read is None else state.entries_read + missed
        if read is None or (head.length and position >= head.last):
            # The group has read all there is, or its past is not known: what it has missed was before our time.
            read = count_read(server, stream, head, position)
        elif not begin.token and held_above(head, position) is None and not self._made_amid(stream, position):
            # An earlier run has made it, ahead of the stream maybe: then what was added below it since is not in its
            # count. It was amid the stream where all that lies below it was there when it was made.
            counted = count_read(server, stream, head, position)
            if counted is not None and head.added is not None and counted - (head.added - head.length) != read:
                read = counted
        if read is not None and head.added is not None:
            self.counts.of[stream] = Count(read, head.added, missed)

    def _leave_out_what_is_below(self, server: Server, stream: str, head: StreamState, state: GroupState) -> None:
        """A group that stands above all that its stream has had so far: what is added below it is none of ours. Where
        that is trimmed before it was seen, it counts as lost: nobody can tell it from what lay above."""
        position, known = state.last_delivered, self.counts.of.get(stream)
        if known is None or head.added is None or not (known.ahead or position > head.last):
            return
        if position > head.last or held_above(head, position) is None:
            read = count_read(server, stream, head, position)
            if read is not None:
                self.counts.of[stream] = known._replace(read=read)

    def _made_amid(self, stream: str, position: StreamId) -> bool:
        made = self._subscription.made.get(stream)
        return made is not None and made.position == position and made.amid
