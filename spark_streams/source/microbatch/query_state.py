"""What a trigger begins with: the groups as they are, once they agree with the checkpoint and with what this run knows.

A trigger that follows another one of the same run knows what is pending: the batch whose acknowledging is under way,
and what was reserved ahead. Where a group shows anything else, or where nothing is known (a first trigger, a connection
that broke), what the checkpoint has is acknowledged first, and the server is asked what is left.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from spark_streams.ids import MAX_ID, StreamId
from spark_streams.options.source_options import SourceOptions
from spark_streams.source.batch.batch_ends import Course
from spark_streams.source.group.account import Account
from spark_streams.source.group.bookmarks import are_moved, bookmarks_of
from spark_streams.source.group.commit_marks import Marks
from spark_streams.source.group.group_reconciler import GroupReconciler, Memory, Moves
from spark_streams.source.group.group_state import GroupState
from spark_streams.source.group.older_positions import forget_older_positions, with_older_positions
from spark_streams.source.group.snapshot import Snapshot
from spark_streams.source.group.subscription import Subscription
from spark_streams.source.limits import Limits
from spark_streams.source.microbatch.acknowledge import Acknowledged, Acknowledging
from spark_streams.source.microbatch.admission import Admission
from spark_streams.source.microbatch.prefetch import Ahead
from spark_streams.source.offset import Offset
from spark_streams.source.pending_list import PendingRange, acknowledge
from spark_streams.source.recovery.claim_consumers import delete_empty_consumers
from spark_streams.source.recovery.handed_entries import refuse_handed, take_handed
from spark_streams.source.recovery.poison_record import Remembered
from spark_streams.wire.server import Server
from spark_streams.wire.xinfo import StreamState


@dataclass(frozen=True)
class RunState:
    """What a run knows between two triggers. Each trigger replaces it; whatever goes wrong replaces it by
    `RunState.unknown()`: then the server is asked, as after a restart.

    heads: the streams at the last trigger; stands: where the groups must stand; acknowledged: what is; ahead: what was
    reserved for the next batch; remembered: batches and pieces that killed the query; courses: what is planned of
    streams that nobody delivers (noAck); account: how many entries the streams have had; moved, passed: where the query
    goes on elsewhere than at its checkpoint (group_reconciler); others_have_pending: other consumers of the groups have
    entries that are not acknowledged; older_at: the token of a checkpoint that older versions kept positions beside.
    """

    is_known: bool = True
    heads: Mapping[str, StreamState] = field(default_factory=dict)
    stands: Mapping[str, StreamId] = field(default_factory=dict)
    acknowledged: Acknowledged = field(default_factory=Acknowledged)
    ahead: Ahead | None = None
    remembered: Remembered = field(default_factory=Remembered)
    courses: Mapping[str, Course] = field(default_factory=dict)
    account: Account = field(default_factory=Account)
    moved: Moves = field(default_factory=dict)
    passed: Mapping[str, StreamId] = field(default_factory=dict)
    others_have_pending: bool = False
    older_at: str | None = None

    @classmethod
    def unknown(cls) -> RunState:
        """Nothing is known."""
        return cls(is_known=False)

    def forgotten(self) -> RunState:
        """Nothing is known of the server any more, but what depends on no server: the batch that tasks of this run may
        be reading is held until it is committed (at-most-once); and what was accepted and counted as lost is not lost
        once more."""
        kept = Acknowledged(marks=Marks(in_flight=self.acknowledged.marks.in_flight))
        return RunState(False, acknowledged=kept, account=self.account, moved=self.moved, passed=self.passed)


@dataclass(frozen=True)
class QueryState:
    """The query at the beginning of a trigger.

    logged: the checkpoint, with positions that are kept on the server and without dropped streams; begin: the same,
    before what the server has lost; heads, groups: per stream; unacknowledged: entries of the batch up to `begin` that
    are pending still, per stream; above: how many entries are reserved above the checkpoint, as the server says,
    None: it was not asked, and this run's own counts hold; run: what the run knows now. What it has reserved `ahead` is
    of use, or else it is found as what a crash has left.
    """

    logged: Offset
    begin: Offset
    heads: Mapping[str, StreamState]
    groups: dict[str, GroupState]
    unacknowledged: Mapping[str, int]
    above: Mapping[str, int] | None
    run: RunState

    @property
    def has_others(self) -> bool:
        """Whether a group has consumers beside ours, or released entries."""
        return any(group.has_others for group in self.groups.values())


class Observer:
    """Looks at the query when a trigger begins, and brings its groups to where they must stand."""

    def __init__(
        self,
        options: SourceOptions,
        subscription: Subscription,
        groups: GroupReconciler,
        acknowledging: Acknowledging,
        admission: Admission,
        limits: Limits,
    ) -> None:
        self._no_ack = options.no_ack
        self._is_at_most_once = options.delivery == "at-most-once"
        self._subscription = subscription
        self._groups = groups
        self._acknowledging = acknowledging
        self._admission = admission
        self._limits = limits

    def state_at(self, server: Server, begin: Offset, run: RunState, keep: Callable[[RunState], None]) -> QueryState:
        """The query at a trigger that begins with this checkpoint. run: what is known of it; keep: see Trigger.next.
        Raises StreamStateError and ServerError, each with what to do."""
        look = self._admission.until is None
        streams = self._subscription.of(server, begin, look, at_once=not run.is_known)
        logged, run = self._checkpoint(server, begin, streams, run)
        found = self._groups.reconciled(server, logged, streams, self._memory(run))
        begin, heads, groups = found.begin, found.heads, found.groups
        run = replace(run, account=found.account, moved=found.moved)
        keep(run)
        if found.unmarked:
            marks = run.acknowledged.marks.without(found.unmarked)
            run = replace(run, acknowledged=replace(run.acknowledged, marks=marks))
        if found.covered:
            run = replace(run, acknowledged=replace(run.acknowledged, covered=found.covered))
        if begin.positions != logged.positions:
            self._acknowledging.take_notes(server, logged, run.acknowledged)  # of streams that are gone, too
        # What the batch before this one left pending is known, so acknowledging it can wait until tasks run.
        unacknowledged = self._unacknowledged(begin, run)
        is_as_left = run.is_known and self._is_as_left(run, groups, unacknowledged)
        if self._no_ack:
            run = replace(run, acknowledged=replace(run.acknowledged, bookmarks=bookmarks_of(groups)))
        above: dict[str, int] | None = None
        if not is_as_left:
            heads, groups, run = self._ask_what_is_left(server, begin, Snapshot(heads, groups), run, keep)
            unacknowledged = {}
            above = {} if self._no_ack else {stream: state.ours for stream, state in groups.items()}
        elif run.ahead is not None:
            run = replace(run, account=run.account.took(run.ahead.ranges))
        account = self._groups.held_against(server, begin, Snapshot(heads, groups), above, run.account)
        run, groups = replace(run, account=account), account.told(groups)
        return QueryState(logged, begin, heads, groups, unacknowledged, above, run)

    def _checkpoint(
        self, server: Server, begin: Offset, streams: Sequence[str], run: RunState
    ) -> tuple[Offset, RunState]:
        """The checkpoint, with what the server keeps beside it, and without streams that the query reads no more."""
        subscription, is_fresh = self._subscription, not run.is_known
        if is_fresh:
            found = with_older_positions(server, subscription.member, begin, streams)
            run = replace(run, older_at=None if found is begin else begin.token)
            begin = found
        elif run.older_at not in (None, begin.token):
            forget_older_positions(server, subscription.member, begin.streams)
            run = replace(run, older_at=None)
        if is_fresh and begin.token:
            subscription.has_checkpoint(server, begin)
            run = self.with_marks(server, run, [*{*streams, *begin.positions}])
        return subscription.without_dropped(server, begin, is_fresh), run

    def with_marks(self, server: Server, run: RunState, streams: Sequence[str]) -> RunState:
        """What the run knows, with the commit marks of these streams as the server has them."""
        marks = self._acknowledging.marks.read(server, run.acknowledged.marks, streams)
        return replace(run, acknowledged=replace(run.acknowledged, marks=marks))

    def _memory(self, run: RunState) -> Memory:
        """What the groups are held against."""
        known = run.acknowledged
        ends = {} if run.ahead is None else run.ahead.ends()
        return Memory(run.heads, known.marks.of, ends, known.bookmarks or {}, run.account, run.moved, run.is_known)

    def _unacknowledged(self, begin: Offset, run: RunState) -> dict[str, int]:
        """Entries of the batch up to `begin` that are pending still, as far as that is known."""
        if not run.is_known or self._no_ack or self._is_at_most_once or run.acknowledged.covers(begin):
            return {}
        return {stream: share.count for stream, share in begin.shares.items()}

    def _is_as_left(self, run: RunState, groups: Mapping[str, GroupState], unacknowledged: Mapping[str, int]) -> bool:
        """Whether no more is pending than we know of, and each group stands where it was left. One that others read
        from, too, may stand elsewhere. If entries were reserved ahead, all of them must be there."""
        ends: Mapping[str, StreamId] = {}
        expected = Counter(unacknowledged)
        if run.ahead is not None:
            ends = run.ahead.ends()
            expected += run.ahead.pending()
        if not ends.keys() <= groups.keys():
            return False
        if self._no_ack and are_moved(run.acknowledged.bookmarks or {}, groups):
            return False
        left = {**run.stands, **ends}
        for stream, state in groups.items():
            is_moved = state.stands is None and state.last_delivered != left.get(stream, state.last_delivered)
            if is_moved and (stream in ends or not state.is_shared(self._subscription.member)):
                return False
            if state.ours > expected[stream] or (ends and state.ours < expected[stream]):
                return False
        return True

    def _ask_what_is_left(
        self,
        server: Server,
        begin: Offset,
        snapshot: Snapshot,
        run: RunState,
        keep: Callable[[RunState], None],
    ) -> tuple[Mapping[str, StreamState], dict[str, GroupState], RunState]:
        """The streams and groups as they are, when what the checkpoint has is acknowledged and what others have done to
        our entries is known; and what the run knows then. Raises DataLossError where entries were passed over and that
        is not allowed."""
        heads, streams = snapshot.heads, list(snapshot.groups)
        member, marks = self._subscription.member, self._acknowledging.marks
        if run.is_known and not marks.are_there(server, run.acknowledged.marks):
            # The server came back from an older state, without our noticing.
            known = run.acknowledged
            run = run.forgotten()
            left = replace(run.acknowledged, bookmarks=known.bookmarks, covered=known.covered)
            run = replace(run, acknowledged=left)
            run = self.with_marks(server, run, streams)
        marked = run.acknowledged.marks
        given = {stream: marked.given(stream) for stream in streams}
        if not self._no_ack:  # before anything is acknowledged: that writes the marks that are gone
            account, passed = self._groups.explain(server, begin, replace(snapshot, marks=marked.of), run.account)
            run = replace(run, account=account, passed={**run.passed, **passed})
            keep(run)
        acknowledged = self._acknowledging.now(server, begin, run.acknowledged)
        heads, found = self._groups.now(server, streams, heads)
        # What is pending above a group that was set back will be delivered again: it must not be pending twice.
        again = [PendingRange(s, MAX_ID, one.last_delivered) for s, one in found.items() if one.ours]
        has_changed = acknowledge(server, member, again, self._limits) > 0
        if not self._no_ack:
            floors = {stream: acknowledged.marks.floor(stream) for stream in streams}
            has_changed |= take_handed(server, member, found, floors, secrets.token_hex(6), self._limits)
        if has_changed:
            heads, found = self._groups.now(server, streams, heads)
        if self._no_ack:
            refuse_handed(server, member, found)
        else:
            if not run.is_known:
                delete_empty_consumers(server, member, found)
            # At most once: entries that a crash has kept from being read are given up, and are no loss.
            given_up = [s for s in streams if given[s] > begin[s] and found[s].last_delivered > begin[s]]
            run = replace(run, account=run.account.forget(given_up))
        return heads, found, replace(run, acknowledged=acknowledged, ahead=None)
