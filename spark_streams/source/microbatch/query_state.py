"""What a trigger begins with: the groups as they are, once they agree with the checkpoint and with what this run knows.

A trigger that follows another one of the same run knows what is pending: the batch whose acknowledging is under way,
and what was reserved ahead. Where a group shows anything else, or where nothing is known (a first trigger, a connection
that broke), what the checkpoint has is acknowledged first, and the server is asked what is left.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from spark_streams.errors import StreamStateError
from spark_streams.ids import MAX_ID, StreamId
from spark_streams.options.source_options import SourceOptions
from spark_streams.source.entry_range import EntryRange
from spark_streams.source.group.group_reconciler import GroupReconciler
from spark_streams.source.group.group_state import GroupState
from spark_streams.source.group.older_positions import forget_older_positions, with_older_positions
from spark_streams.source.group.subscription import Subscription
from spark_streams.source.limits import Limits
from spark_streams.source.microbatch.acknowledge import Acknowledging
from spark_streams.source.microbatch.admission import Admission
from spark_streams.source.microbatch.background import BackgroundWorker
from spark_streams.source.microbatch.prefetch import Prefetch
from spark_streams.source.offset import Offset
from spark_streams.source.pending_list import PendingRange, acknowledge
from spark_streams.source.recovery.claim_consumers import delete_empty_consumers
from spark_streams.source.recovery.handed_entries import refuse_handed, take_handed
from spark_streams.wire.server import Server


@dataclass(frozen=True)
class QueryState:
    """The query at the beginning of a trigger.

    logged: the checkpoint, with positions that are kept on the server and without dropped streams; begin: the same,
    before what the server has lost; groups: per stream; prefetch: what was reserved ahead, where it is still of use
    (else it is found as what a crash has left); unacknowledged: entries of the batch that ends at `begin` and are
    pending still, per stream; above: how many entries are reserved above the checkpoint, as the server says, None: it
    was not asked, and this run's own counts hold.
    """

    logged: Offset
    begin: Offset
    groups: dict[str, GroupState]
    prefetch: Prefetch | None
    unacknowledged: Mapping[str, int]
    above: Mapping[str, int] | None


class RunMemory:
    """worker: what it runs beside the tasks is waited for; forget: called where nothing is to be taken for known;
    is_fresh: what this run remembers may not be relied on, and the server is asked."""

    def __init__(
        self,
        options: SourceOptions,
        subscription: Subscription,
        groups: GroupReconciler,
        acknowledging: Acknowledging,
        admission: Admission,
        worker: BackgroundWorker,
        forget: Callable[[], None],
        limits: Limits,
    ) -> None:
        self._no_ack = options.no_ack
        self._is_at_most_once = options.delivery == "at-most-once"
        self._subscription = subscription
        self._groups = groups
        self._acknowledging = acknowledging
        self._admission = admission
        self._worker = worker
        self._forget = forget
        self._limits = limits
        self._streams: tuple[str, ...] = ()
        self._prefetch: Prefetch | None = None
        self._older_at: str | None = None  # the token of a checkpoint that older versions kept positions beside
        self._expected: Mapping[str, StreamId] = {}  # where the groups must stand
        self.is_fresh = True
        self.others_have_pending = False  # other consumers of the groups have entries that are not acknowledged

    # -- from one trigger to the next ------------------------------------------------------------------------------

    def begin_afresh(self) -> None:
        """Take nothing for known."""
        self.is_fresh = True
        self._acknowledging.forget()
        self._forget()

    def remember(self, groups: Mapping[str, GroupState], reserved: Collection[EntryRange]) -> None:
        """A trigger is over, and the groups stand behind what it has reserved."""
        self.is_fresh = False
        positions = {stream: state.last_delivered for stream, state in groups.items()}
        self._expected = positions | {entries.stream: entries.last for entries in reserved}
        self.others_have_pending = any(other.pending for state in groups.values() for other in state.others)

    def expect(self, prefetch: Prefetch) -> None:
        """This is being reserved beside the tasks, for the next trigger."""
        self._prefetch = prefetch
        self._worker.submit(prefetch.work)

    @property
    def reserved_ahead(self) -> int:
        """How many entries are reserved for the next trigger, once the worker is done."""
        return 0 if self._prefetch is None else sum(entries.count for entries in self._prefetch.ranges)

    def wait_for_worker(self) -> Prefetch | None:
        """Until what was begun beside the tasks is finished; what it has reserved, if it is of use."""
        prefetch, self._prefetch = self._prefetch, None
        try:
            self._worker.wait()
        except StreamStateError:
            # A stream or group is gone: what follows says which, and whether that is allowed.
            self.begin_afresh()
            return None
        return None if prefetch is None or not prefetch.ranges or self.is_fresh else prefetch

    # -- a trigger begins ------------------------------------------------------------------------------------------

    def state_at(self, server: Server, begin: Offset) -> QueryState:
        """The query at a trigger that begins with this checkpoint. Raises StreamStateError and ServerError, each with
        what to do."""
        prefetch = self.wait_for_worker()
        logged = self._checkpoint(server, begin)
        ends = {} if prefetch is None else prefetch.ends()
        bookmarks = self._acknowledging.bookmarks
        left = {} if bookmarks is None else bookmarks.of
        begin, groups = self._groups.reconciled(
            server, logged, self._streams, self._acknowledging.marks, ends, left, self.is_fresh
        )
        if begin.positions != logged.positions:
            self._acknowledging.take_notes(server, logged)  # of streams that are gone, too
        # What the batch before this one left pending is known, so acknowledging it can wait until tasks run.
        unacknowledged = self._unacknowledged(begin)
        if prefetch is not None and not prefetch.is_untouched(groups, unacknowledged):
            # Somebody else has been there: the server is asked what is ours, as after a crash.
            prefetch = None
            self.begin_afresh()
        if bookmarks is not None:
            if not self.is_fresh and bookmarks.moved(groups):
                self.begin_afresh()
            bookmarks.saw(groups)
        above: dict[str, int] | None = None
        if self.is_fresh or self._differs_from_memory(groups, unacknowledged, prefetch):
            groups = self._ask_what_is_left(server, begin, groups)
            prefetch, unacknowledged = None, {}
            above = {} if self._no_ack else {stream: state.ours for stream, state in groups.items()}
        elif prefetch is not None:
            self._groups.account.counts.took(prefetch.ranges)
        self._groups.account.hold(server, begin, self._groups.heads, groups, above)
        return QueryState(logged, begin, groups, prefetch, unacknowledged, above)

    def _checkpoint(self, server: Server, begin: Offset) -> Offset:
        """The checkpoint, with what the server keeps beside it, and without streams that the query reads no more."""
        subscription, is_fresh = self._subscription, self.is_fresh
        self._streams = subscription.of(server, begin, look=self._admission.until is None, at_once=is_fresh)
        if is_fresh:
            begin = self._with_older_positions(server, begin)
        elif self._older_at not in (None, begin.token):
            forget_older_positions(server, subscription.member, begin.streams)
            self._older_at = None
        if is_fresh and begin.token:
            subscription.has_checkpoint(server, begin)
            self._acknowledging.marks.read(server, [*{*self._streams, *begin.positions}])
        return subscription.without_dropped(server, begin, is_fresh)

    def _with_older_positions(self, server: Server, begin: Offset) -> Offset:
        found = with_older_positions(server, self._subscription.member, begin, self._streams)
        self._older_at = None if found is begin else begin.token
        return found

    def _unacknowledged(self, begin: Offset) -> dict[str, int]:
        """Entries of the batch up to `begin` that are pending still, as far as that is known."""
        if self.is_fresh or self._no_ack or self._is_at_most_once or self._acknowledging.is_done(begin):
            return {}
        return {stream: share.count for stream, share in begin.shares.items()}

    def _differs_from_memory(
        self, groups: Mapping[str, GroupState], unacknowledged: Mapping[str, int], prefetch: Prefetch | None
    ) -> bool:
        """Whether a group that is ours alone does not stand where it was left, or more is pending than we know of."""
        expected = Counter(unacknowledged)
        left = self._expected
        if prefetch is not None:
            expected += prefetch.pending()
            left = {**left, **prefetch.ends()}
        for stream, state in groups.items():
            moved = state.last_delivered != left.get(stream, state.last_delivered)
            if state.ours > expected[stream]:
                return True
            if moved and state.stands is None and not state.is_shared(self._subscription.member):
                return True
        return False

    def _ask_what_is_left(
        self, server: Server, begin: Offset, groups: Mapping[str, GroupState]
    ) -> dict[str, GroupState]:
        """The groups as they are, when what the checkpoint has is acknowledged and what others have done to our entries
        is known. Raises DataLossError where entries were passed over and that is not allowed."""
        member, marks, streams = self._subscription.member, self._acknowledging.marks, list(groups)
        if not self.is_fresh and not marks.are_there(server):
            self.begin_afresh()  # the server came back from an older state, without our noticing
            marks.read(server, streams)
        given = {stream: marks.given(stream) for stream in streams}
        if not self._no_ack:  # before anything is acknowledged: that writes the marks that are gone
            self._groups.explain(server, begin, groups, given, marks.of)
        self._acknowledging.now(server, begin)
        groups = self._groups.now(server, streams)
        # What is pending above a group that was set back will be delivered again: it must not be pending twice.
        again = [PendingRange(s, MAX_ID, state.last_delivered) for s, state in groups.items() if state.ours]
        has_changed = acknowledge(server, member, again, self._limits) > 0
        if self._no_ack:
            groups = self._groups.now(server, streams) if has_changed else groups
            refuse_handed(server, member, groups)
            return groups
        floors = {stream: marks.floor(stream) for stream in streams}
        if take_handed(server, member, groups, floors, secrets.token_hex(6), self._limits) or has_changed:
            groups = self._groups.now(server, streams)
        if self.is_fresh:
            delete_empty_consumers(server, member, groups)
        # At most once: entries that a crash has kept from being read are given up, and are no loss.
        self._groups.account.forget([s for s in streams if given[s] > begin[s] and groups[s].last_delivered > begin[s]])
        return groups
