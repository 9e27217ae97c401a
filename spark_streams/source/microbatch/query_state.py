"""What a trigger begins with: the streams and groups as they are, once they agree with the checkpoint and with what
this run knows.

A trigger that follows another one of the same run knows what is pending: the batch up to `begin`, which is committed
and not acknowledged yet, and what was reserved ahead. If a group shows anything else, or if nothing is known (a first
trigger, a connection that broke), the reconciler acknowledges what the checkpoint has, and asks the server what is
left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from spark_streams.model.ids import StreamId
from spark_streams.options.source_options import SourceOptions
from spark_streams.source.findings.count_entries import count_read
from spark_streams.source.findings.data_loss import DataLoss
from spark_streams.source.findings.diagnosis import diagnose
from spark_streams.source.findings.group_state import GroupState, fetch_state
from spark_streams.source.findings.snapshot import Snapshot
from spark_streams.source.group.bookmarks import are_moved, bookmarks_of
from spark_streams.source.group.subscription import Subscription
from spark_streams.source.microbatch.acknowledge import Acknowledging
from spark_streams.source.microbatch.reconcile import Reconciler
from spark_streams.source.microbatch.run_state import RunState
from spark_streams.source.offset import Offset
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.xinfo import StreamState


@dataclass(frozen=True)
class QueryState:
    """The query at the beginning of a trigger.

    checkpoint: with positions that are kept on the server and without dropped streams; begin: the same,
    before what the server has lost; heads, groups: per stream; unacknowledged: entries of the batch up to `begin` that
    are pending still, per stream; above: how many entries are reserved above the checkpoint, as the server says,
    None: it was not asked, and this run's own counts hold; run: what the run knows now. What it has reserved `ahead` is
    of use, or else it is found as what a crash has left.
    """

    checkpoint: Offset
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
    """Brings the query to where a trigger can begin. A healthy query is only looked at; otherwise, and with noAck, the
    reconciler repairs groups and acknowledges."""

    def __init__(
        self,
        options: SourceOptions,
        subscription: Subscription,
        reconciler: Reconciler,
        losses: DataLoss,
        acknowledging: Acknowledging,
    ) -> None:
        self._no_ack = options.no_ack
        self._subscription = subscription
        self._reconciler = reconciler
        self._losses = losses
        self._acknowledging = acknowledging

    def state_at(self, server: Server, begin: Offset, run: RunState, save: Callable[[RunState], None]) -> QueryState:
        """The query at a trigger that begins with this checkpoint. run: what is known of it; save: see Trigger.next.
        Raises StreamStateError and ServerError, each with what to do."""
        find_new = run.admission.until is None
        streams = self._subscription.streams_to_read(server, begin, find_new, at_once=not run.is_known)
        logged, run = self._checkpoint(server, begin, streams, run)
        begin = self._subscription.without_unused_returned(run.moved.apply_to(logged))
        heads: Mapping[str, StreamState]
        heads, fetched = fetch_state(server, self._subscription.member, streams, run.heads)
        groups = self._agreeing(begin, heads, fetched, run)
        if groups is None:
            begin, heads, groups, run = self._reconciler.reconciled(server, begin, heads, fetched, run)
            save(run)
        if begin.positions != logged.positions:
            self._acknowledging.take_notes(server, logged, run.acknowledged)  # of missing streams, too
        # What the batch before this one left pending is known, so acknowledging it can wait until tasks run.
        unacknowledged = self._unacknowledged(begin, run)
        is_as_left = run.is_known and self._is_as_left(run, groups, unacknowledged)
        if self._no_ack:
            run = replace(run, acknowledged=replace(run.acknowledged, bookmarks=bookmarks_of(groups)))
        above: dict[str, int] | None = None
        if not is_as_left:
            heads, groups, run = self._reconciler.settle_and_reread(server, begin, Snapshot(heads, groups), run, save)
            unacknowledged = {}
            above = {} if self._no_ack else {stream: state.ours for stream, state in groups.items()}
        elif run.prefetched is not None:
            run = replace(run, account=run.account.with_reserved(run.prefetched.ranges))
        member, created, ask = self._subscription.member, self._subscription.created, partial(count_read, server)
        account, lost = run.account.compare(begin, Snapshot(heads, groups), above, member, created, run.joined, ask)
        if lost:
            self._losses.report(*lost)
        run, groups = replace(run, account=account), account.with_entries_read(groups)
        return QueryState(logged, begin, heads, groups, unacknowledged, above, run)

    def _checkpoint(
        self, server: Server, begin: Offset, streams: Sequence[str], run: RunState
    ) -> tuple[Offset, RunState]:
        """The checkpoint without streams that the query reads no more."""
        subscription, is_fresh = self._subscription, not run.is_known
        if is_fresh and begin.token:
            subscription.confirm_checkpoint(server, begin)
            run = self._reconciler.with_marks(server, run, [*{*streams, *begin.positions}])
        return subscription.without_dropped(server, begin, is_fresh), run

    def _agreeing(
        self, begin: Offset, heads: Mapping[str, StreamState], groups: Mapping[str, GroupState | None], run: RunState
    ) -> dict[str, GroupState] | None:
        """The groups, if all are there and agree with the checkpoint; None: the reconciler is to look at them."""
        states = {stream: state for stream, state in groups.items() if state is not None and state.has_consumer}
        if not run.is_known or self._no_ack or begin.no_ack or len(states) < len(groups):
            return None
        run_view = run.seen_by(self._subscription.member, self._subscription.by_pattern)
        diagnosis = diagnose(Snapshot(heads, groups, run.acknowledged.marks.by_stream), begin, run_view)
        return None if diagnosis.findings or diagnosis.questions else states

    def _unacknowledged(self, begin: Offset, run: RunState) -> dict[str, int]:
        """Entries of the batch up to `begin` that are pending still, as far as that is known."""
        if not run.is_known or self._no_ack or run.acknowledged.includes(begin):
            return {}
        return {stream: share.count for stream, share in begin.shares.items()}

    def _is_as_left(self, run: RunState, groups: Mapping[str, GroupState], unacknowledged: Mapping[str, int]) -> bool:
        """Whether no more is pending than we know of, and each group stands where it was left. One that others read
        from, too, may stand elsewhere. If entries were reserved ahead, all of them must be there."""
        ends: Mapping[str, StreamId] = {}
        expected = Counter(unacknowledged)
        if run.prefetched is not None:
            ends = run.prefetched.ends()
            expected += run.prefetched.pending()
        if not ends.keys() <= groups.keys():
            return False
        if self._no_ack and are_moved(run.acknowledged.bookmarks or {}, groups):
            return False
        positions = {**run.expected_positions, **ends}
        for stream, state in groups.items():
            is_moved = state.bookmark_position is None and state.last_delivered != positions.get(
                stream, state.last_delivered
            )
            if is_moved and (stream in ends or not state.is_shared(self._subscription.member)):
                return False
            if state.ours > expected[stream] or (ends and state.ours < expected[stream]):
                return False
        return True
