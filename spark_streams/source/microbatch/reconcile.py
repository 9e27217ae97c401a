"""What a trigger does if the groups do not agree with the checkpoint, if nothing is known (a first trigger, a broken
connection), and with noAck: diagnose, repair, and ask the server what is left of the batch before."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from spark_streams.model.ids import MAX_ID, MIN_ID, StreamId
from spark_streams.options.source_options import SourceOptions
from spark_streams.source.findings.count_entries import count_read, entries_up_to
from spark_streams.source.findings.data_loss import DataLoss
from spark_streams.source.findings.diagnosis import Diagnosis, diagnose, explain
from spark_streams.source.findings.finding import Start
from spark_streams.source.findings.group_state import (
    GroupState,
    fetch_state,
    require_alone,
    require_groups,
    require_none_released,
    shared_above,
)
from spark_streams.source.findings.repair import Repair, repair_of
from spark_streams.source.findings.snapshot import Evidence, Run, Snapshot
from spark_streams.source.group.bookmarks import Bookmarks
from spark_streams.source.group.commit_marks import delete_marks
from spark_streams.source.group.group_admin import create_consumers, create_groups_at, set_groups_to
from spark_streams.source.group.subscription import Subscription
from spark_streams.source.limits import Limits
from spark_streams.source.membership import Membership
from spark_streams.source.microbatch.acknowledge import Acknowledging
from spark_streams.source.microbatch.run_state import RunState
from spark_streams.source.microbatch.scratch_group import destroy_scratch_groups
from spark_streams.source.offset import Offset
from spark_streams.source.pending_list import PendingRange, acknowledge
from spark_streams.source.recovery.claim_consumers import delete_empty_consumers
from spark_streams.source.recovery.handed_entries import claim_handed_entries, refuse_handed_entries
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.xinfo import StreamState, consumers_in


class Reconciler:
    """subscription: what is read; the groups are bookmarks (group.bookmarks) with noAck."""

    def __init__(
        self,
        options: SourceOptions,
        subscription: Subscription,
        losses: DataLoss,
        acknowledging: Acknowledging,
        limits: Limits,
    ) -> None:
        self._no_ack = options.no_ack
        self._subscription = subscription
        self._losses = losses
        self._acknowledging = acknowledging
        self._limits = limits

    @property
    def _member(self) -> Membership:
        return self._subscription.member

    def reconciled(
        self,
        server: Server,
        begin: Offset,
        heads: Mapping[str, StreamState],
        groups: Mapping[str, GroupState | None],
        run: RunState,
    ) -> tuple[Offset, Mapping[str, StreamState], dict[str, GroupState], RunState]:
        """The checkpoint without what the server has lost; the streams and their groups, once they agree with it; and
        what the run knows then. heads, groups: as they are.

        Raises DataLossError, GroupMissingError, StreamStateError, GroupSharedError.
        """
        is_fresh, acknowledged = not run.is_known, run.acknowledged
        if is_fresh:
            run = replace(run, account=run.account.with_counts(begin.counts))
        was_no_ack = begin.no_ack and is_fresh and not self._no_ack
        if self._no_ack:
            self._require_alone(groups)
        if is_fresh and (self._no_ack or was_no_ack):
            destroy_scratch_groups(server, self._member, list(groups))
        if was_no_ack:
            self._require_none_above(server, begin, groups)
        bookmarks: Bookmarks | None = None
        if self._no_ack or was_no_ack:
            bookmarks = {} if is_fresh else acknowledged.bookmarks or {}
        seen = run.seen_by(self._member, self._subscription.by_pattern, bookmarks)
        findings = self._diagnose(server, Snapshot(heads, groups, acknowledged.marks.by_stream), begin, seen).findings
        if findings and not is_fresh and not self._no_ack:  # a bookmark has no pending entries
            # What the run knows of streams, marks and pending entries may be older than the server: once more, knowing
            # nothing. A restored server may have received as many entries as it lost.
            heads, groups = fetch_state(server, self._member, list(groups))
            fresh = self.with_marks(server, run.unknown(), [*{*groups, *begin.positions}])
            return self.reconciled(server, begin, heads, groups, fresh)
        if findings:
            self._losses.report(*findings)
            repair = repair_of(findings, begin, self._losses.allowed)
            heads, groups = self._carry_out(server, repair, heads, groups)
            run, begin = _repaired(run, begin, repair), repair.begin
        states = {stream: state for stream, state in groups.items() if state is not None}
        unknown = [stream for stream, state in states.items() if not state.has_consumer]
        if unknown:
            create_consumers(server, self._member, unknown)
            run = replace(run, joined=run.joined | {*unknown})
        if self._no_ack:
            states = self._bookmarks(states, begin.positions)
        elif was_no_ack:
            states = self._delivering(server, begin, states)
            run = self._drop_marks_above(server, begin, run)
        return begin, heads, states, run

    def _drop_marks_above(self, server: Server, begin: Offset, run: RunState) -> RunState:
        """An older copy of a checkpoint with noAck goes on from where it stands: what lies above is given again."""
        acknowledged = run.acknowledged
        above = [s for s, mark in acknowledged.marks.by_stream.items() if mark.up_to > begin.positions.get(s, MAX_ID)]
        delete_marks(server, self._member, above)
        return replace(run, acknowledged=replace(acknowledged, marks=acknowledged.marks.without(above)))

    @staticmethod
    def _diagnose(server: Server, snapshot: Snapshot, begin: Offset, run: Run) -> Diagnosis:
        """What is wrong, with what only the server can tell asked for."""
        diagnosis = diagnose(snapshot, begin, run)
        if not diagnosis.questions:
            return diagnosis
        evidence = {
            stream: entries_up_to(server, stream, snapshot.heads[stream], position)
            for stream, _, position in diagnosis.questions
        }
        return diagnose(snapshot, begin, run, evidence)

    def _carry_out(
        self,
        server: Server,
        repair: Repair,
        heads: Mapping[str, StreamState],
        groups: Mapping[str, GroupState | None],
    ) -> tuple[dict[str, StreamState], dict[str, GroupState | None]]:
        """Bring streams and groups to where the checkpoint stands then. Returns them as they are."""
        heads = {stream: head for stream, head in heads.items() if stream not in repair.abandoned}
        groups = {stream: state for stream, state in groups.items() if stream not in repair.abandoned}
        create_groups_at(server, self._member, repair.created)
        set_groups_to(server, self._member, repair.moved)
        delete_marks(server, self._member, repair.unmarked)
        if repair.created or repair.moved:
            heads, groups = fetch_state(server, self._member, list(groups), heads)
            require_groups(server, self._member, heads, groups)
        return heads, groups

    @staticmethod
    def _bookmarks(states: Mapping[str, GroupState], positions: Mapping[str, StreamId]) -> dict[str, GroupState]:
        """The groups as bookmarks of a query at these positions; without one, where they stand."""
        return {
            stream: state.as_bookmark(positions.get(stream, state.last_delivered)) for stream, state in states.items()
        }

    def _require_alone(self, groups: Mapping[str, GroupState | None]) -> None:
        """Raise GroupSharedError if another client reads from one of the bookmarks, or has released entries there."""
        for stream, state in groups.items():
            if state is not None:
                require_alone(self._member, stream, state)
                require_none_released(self._member, stream, state)

    def _require_none_above(self, server: Server, begin: Offset, groups: Mapping[str, GroupState | None]) -> None:
        """The last run had noAck. A group that others read from since must not stand above the checkpoint, unless
        entries above it are pending for us (a run with a pending list has set it already). Raises GroupSharedError."""
        above = {
            stream: state
            for stream, state in groups.items()
            if state is not None and state.is_shared(self._member) and state.last_delivered > begin[stream]
        }
        listed = self._listed_above(server, begin, list(above))
        for stream, state in above.items():
            if stream not in listed:
                raise shared_above(self._member, stream, state, begin[stream])

    def _listed_above(self, server: Server, begin: Offset, streams: Sequence[str]) -> set[str]:
        """Those of the streams with entries above the checkpoint that are pending for us."""
        group, consumer = self._member.group, self._member.consumer
        commands = [("XPENDING", stream, group, f"({begin[stream]}", "+", 1, consumer) for stream in streams]
        replies = dict(zip(streams, server.execute_all(commands), strict=True))
        return {stream for stream, reply in replies.items() if reply}

    def _delivering(self, server: Server, begin: Offset, states: dict[str, GroupState]) -> dict[str, GroupState]:
        """Bookmarks as groups that deliver again, from the checkpoint on. The groups then; one that others read from
        stays if it is above."""
        new_states = dict(states)
        for stream, state in states.items():
            position = begin.positions.get(stream, state.last_delivered)
            stays = state.is_shared(self._member) and state.last_delivered > position
            if state.last_delivered != position and not stays:
                count = begin.counts.get(stream)
                start = Start(position, None if count is None else count.read)
                set_groups_to(server, self._member, {stream: start})
                new_states[stream] = state._replace(last_delivered=position, entries_read=start.read, lag=None)
        return new_states

    def with_marks(self, server: Server, run: RunState, streams: Sequence[str]) -> RunState:
        """What the run knows, with the commit marks of these streams as the server has them."""
        marks = self._acknowledging.marks.read(server, run.acknowledged.marks, streams)
        return replace(run, acknowledged=replace(run.acknowledged, marks=marks))

    def settle_and_reread(
        self,
        server: Server,
        begin: Offset,
        snapshot: Snapshot,
        run: RunState,
        save: Callable[[RunState], None],
    ) -> tuple[Mapping[str, StreamState], dict[str, GroupState], RunState]:
        """Acknowledge what the checkpoint has, take what others have handed to us, and read streams and groups again:
        these, and what the run knows then. Raises DataLossError where entries were passed over and that
        is not allowed."""
        heads, streams = snapshot.heads, list(snapshot.groups)
        member, marks = self._subscription.member, self._acknowledging.marks
        if run.is_known and not marks.are_current(server, run.acknowledged.marks):
            # The server has returned to an older state, and the connection did not break.
            bookmarks, run = run.acknowledged.bookmarks, run.unknown()
            run = replace(run, acknowledged=replace(run.acknowledged, bookmarks=bookmarks))
            run = self.with_marks(server, run, streams)
        marked = run.acknowledged.marks
        if not self._no_ack:  # before anything is acknowledged, because that writes missing marks
            run = self._explain(server, begin, replace(snapshot, marks=marked.by_stream), run)
            save(run)
        acknowledged = self._acknowledging.acknowledge(server, begin, run.acknowledged)
        heads, groups = self._fetch_groups(server, streams, heads)
        # A group that was set back will deliver the entries above it again: they must not be pending twice.
        redelivered = [PendingRange(s, MAX_ID, state.last_delivered) for s, state in groups.items() if state.ours]
        redelivered += [
            PendingRange(stream, MAX_ID, state.last_delivered, other.name)
            for stream, state in groups.items()
            for other in state.others
            if other.pending and self._member.owns(other.name)
        ]
        has_changed = acknowledge(server, member, redelivered, self._limits) > 0
        if not self._no_ack:
            floors = {stream: acknowledged.marks.floor(stream) for stream in streams}
            has_changed |= claim_handed_entries(server, member, groups, floors, secrets.token_hex(6), self._limits)
        if has_changed:
            heads, groups = self._fetch_groups(server, streams, heads)
        if self._no_ack:
            refuse_handed_entries(server, member, groups)
        elif not run.is_known:
            delete_empty_consumers(server, member, groups)
        return heads, groups, replace(run, acknowledged=acknowledged, prefetched=None)

    def _fetch_groups(
        self, server: Server, streams: Sequence[str], cached_heads: Mapping[str, StreamState]
    ) -> tuple[dict[str, StreamState], dict[str, GroupState]]:
        """Return the streams and their groups. cached_heads: of the last fetch. Raises GroupMissingError,
        DataLossError."""
        heads, groups = fetch_state(server, self._member, streams, cached_heads)
        require_groups(server, self._member, heads, groups)
        states = {stream: state for stream, state in groups.items() if state is not None}
        return heads, self._bookmarks(states, {}) if self._no_ack else states

    def _explain(self, server: Server, begin: Offset, snapshot: Snapshot, run: RunState) -> RunState:
        """Find out why groups stand above the checkpoint (diagnosis.explain). Raises DataLossError if entries are
        passed over and that is not allowed."""
        seen = Run(self._member, run.account.counts)
        streams = [question.stream for question in explain(snapshot, begin, seen).questions]
        if not streams:
            return run
        evidence = self._pending(server, streams)
        for stream, _, position in explain(snapshot, begin, seen, evidence).questions:
            up_to = count_read(server, stream, snapshot.heads[stream], position)
            evidence[stream] = evidence[stream]._replace(up_to=up_to or 0)
        findings = explain(snapshot, begin, seen, evidence).findings
        self._losses.report(*findings)
        repair = repair_of(findings, begin, self._losses.allowed)
        set_groups_to(server, self._member, repair.moved)
        delete_marks(server, self._member, repair.unmarked)
        return replace(run, account=run.account.share(repair.shared), passed={**run.passed, **repair.passed})

    def _pending(self, server: Server, streams: Sequence[str]) -> dict[str, Evidence]:
        """What is pending in each group, for anybody; then whether our consumer is still there."""
        evidence = {}
        member = self._member
        commands: list[tuple[str, ...]] = [("XPENDING", stream, member.group) for stream in streams]
        commands += [("XINFO", "CONSUMERS", stream, member.group) for stream in streams]
        replies = server.execute_all(commands)
        for stream, reply, consumers in zip(streams, replies, replies[len(streams) :], strict=False):
            last = StreamId.parse(reply[2]) if reply[0] else MIN_ID
            has_consumer = any(consumer.text == member.consumer for consumer in consumers_in(consumers))
            evidence[stream] = Evidence(pending=reply[0], last_pending=last, has_consumer=has_consumer)
        return evidence


def _repaired(run: RunState, begin: Offset, repair: Repair) -> RunState:
    """What a run knows when this is carried out."""
    acknowledged = run.acknowledged
    acknowledged = replace(
        acknowledged, marks=acknowledged.marks.without(repair.unmarked), covered=repair.covered or acknowledged.covered
    )
    account = run.account.forget(repair.forgotten)
    return replace(run, acknowledged=acknowledged, account=account, moved=run.moved.after(begin, repair.begin))
