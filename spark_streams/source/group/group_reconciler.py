"""The query's groups at a trigger: asked for, held against the checkpoint, and mended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from spark_streams.ids import MIN_ID, StreamId
from spark_streams.retention.commit_mark import Mark
from spark_streams.source.group.account import Account
from spark_streams.source.group.commit_marks import delete_marks
from spark_streams.source.group.count_entries import count_read, entries_up_to
from spark_streams.source.group.data_loss import DataLoss
from spark_streams.source.group.diagnosis import Diagnosis, diagnose, explain
from spark_streams.source.group.finding import Start
from spark_streams.source.group.group_admin import create_consumers, create_groups_at, set_groups_to
from spark_streams.source.group.group_state import (
    GroupState,
    fetch_state,
    require_alone,
    require_groups,
    require_none_released,
    shared_above,
)
from spark_streams.source.group.repair import Repair, repair_of
from spark_streams.source.group.rows_read import RowsRead
from spark_streams.source.group.snapshot import Evidence, Run, Snapshot
from spark_streams.source.group.subscription import Subscription
from spark_streams.source.membership import Membership
from spark_streams.source.offset import Offset
from spark_streams.wire.connection import ReplyError
from spark_streams.wire.server import Server
from spark_streams.wire.xinfo import StreamState

Moves = Mapping[str, tuple[StreamId, StreamId]]  # per stream: the checkpoint's position, and what it is now


@dataclass(frozen=True)
class Memory:
    """What this run knows of its groups, per stream. heads: the streams when they were last asked for; marks: up to
    where batches are committed; ends: where groups stand above the checkpoint, with what was reserved ahead; bookmarks:
    where this run has left them (noAck). account: what losses are held against. moved: see `as_moved`. is_known: False
    if the server is to be asked, as after a restart."""

    heads: Mapping[str, StreamState] = field(default_factory=dict)
    marks: Mapping[str, Mark] = field(default_factory=dict)
    ends: Mapping[str, StreamId] = field(default_factory=dict)
    bookmarks: Mapping[str, StreamId] = field(default_factory=dict)
    account: Account = field(default_factory=Account)
    moved: Moves = field(default_factory=dict)
    is_known: bool = False


@dataclass(frozen=True)
class Reconciled:
    """begin: the checkpoint without what the server has lost; heads, groups: the streams and their groups, which agree
    with it; account, moved: see Memory; unmarked: streams whose commit marks were deleted, because they spoke of
    something else; covered: streams of which the tasks' notes on the last batch count no more."""

    begin: Offset
    heads: Mapping[str, StreamState]
    groups: dict[str, GroupState]
    account: Account
    moved: Moves
    unmarked: Sequence[str] = ()
    covered: frozenset[str] = frozenset()


class GroupReconciler:
    """subscription: what is read; no_ack: the groups are bookmarks (group.bookmarks)."""

    def __init__(self, losses: DataLoss, subscription: Subscription, no_ack: bool) -> None:
        self._losses = losses
        self._subscription = subscription
        self._no_ack = no_ack

    @property
    def _member(self) -> Membership:
        return self._subscription.member

    def reconciled(self, server: Server, begin: Offset, streams: Sequence[str], memory: Memory) -> Reconciled:
        """The groups as they are, once they agree with the checkpoint.

        Raises DataLossError, GroupMissingError, StreamStateError, GroupSharedError.
        """
        begin, afresh = as_moved(begin, memory.moved), not memory.is_known
        account, moved = memory.account, memory.moved
        if afresh:
            account = account.know(begin.counts)
        heads, groups = fetch_state(server, self._member, streams, memory.heads)
        if any(count.before for count in begin.counts.values()):
            read = RowsRead(server, self._member, self._losses, {} if afresh else account.counts)
            begin = read.counted(begin, heads, groups)
        was_no_ack = begin.no_ack and afresh and not self._no_ack
        if self._no_ack:
            self._require_alone(groups)
        if was_no_ack:
            self._require_none_above(server, begin, groups)
        bookmarks = {} if afresh and (self._no_ack or was_no_ack) else memory.bookmarks if self._no_ack else None
        run = Run(self._member, account.counts, memory.ends, bookmarks, self._subscription.by_pattern)
        findings = self._diagnose(server, Snapshot(heads, groups, memory.marks), begin, run).findings
        repair = Repair(begin)
        if findings:
            self._losses.report(*findings)
            repair = repair_of(findings, begin, self._losses.allowed)
            heads, groups = self._carry_out(server, repair, heads, groups)
            account, moved = account.forget(repair.forgotten), {**moved, **_moves(begin, repair)}
            begin = repair.begin
        states = {stream: state for stream, state in groups.items() if state is not None}
        unknown = [stream for stream, state in states.items() if not state.known]
        if unknown:
            create_consumers(server, self._member, unknown)
        if self._no_ack:
            states = self._bookmarks(states, begin.positions)
        elif was_no_ack:
            states = self._delivering(server, begin, states)
        return Reconciled(begin, heads, states, account, moved, repair.unmarked, repair.covered)

    @staticmethod
    def _diagnose(server: Server, snapshot: Snapshot, begin: Offset, run: Run) -> Diagnosis:
        """What is wrong, with what only the server can tell asked for."""
        found = diagnose(snapshot, begin, run)
        if not found.questions:
            return found
        evidence = {
            stream: entries_up_to(server, stream, snapshot.heads[stream], position)
            for stream, _, position in found.questions
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
        heads = {stream: head for stream, head in heads.items() if stream not in repair.left}
        groups = {stream: state for stream, state in groups.items() if stream not in repair.left}
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
        return {stream: state.at(positions.get(stream, state.last_delivered)) for stream, state in states.items()}

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
        asked = [("XPENDING", stream, group, f"({begin[stream]}", "+", 1, consumer) for stream in streams]
        replies = dict(zip(streams, server.execute_all(asked), strict=True))
        return {stream for stream, reply in replies.items() if reply}

    def _delivering(self, server: Server, begin: Offset, states: dict[str, GroupState]) -> dict[str, GroupState]:
        """Bookmarks as groups that deliver again, from the checkpoint on. The groups then; one that others read from
        stays if it is above."""
        found = dict(states)
        for stream, state in states.items():
            position = begin.positions.get(stream, state.last_delivered)
            stays = state.is_shared(self._member) and state.last_delivered > position
            if state.last_delivered != position and not stays:
                known = begin.counts.get(stream)
                start = Start(position, None if known is None or known.before else known.read)
                set_groups_to(server, self._member, {stream: start})
                found[stream] = state._replace(last_delivered=position, entries_read=start.read, lag=None)
        return found

    def now(
        self, server: Server, streams: Sequence[str], known: Mapping[str, StreamState]
    ) -> tuple[dict[str, StreamState], dict[str, GroupState]]:
        """The streams and their groups as they are. known: the streams when they were last asked for. Raises
        GroupMissingError, DataLossError where one is gone."""
        heads, groups = fetch_state(server, self._member, streams, known)
        require_groups(server, self._member, heads, groups)
        states = {stream: state for stream, state in groups.items() if state is not None}
        return heads, self._bookmarks(states, {}) if self._no_ack else states

    def explain(
        self, server: Server, begin: Offset, snapshot: Snapshot, account: Account
    ) -> tuple[Account, Mapping[str, StreamId]]:
        """Find out why groups stand above the checkpoint (diagnosis.explain). Returns the account then, and up to where
        the query goes on without what nobody was given. Raises DataLossError if that is not allowed."""
        run = Run(self._member, account.counts)
        asked = [one.stream for one in explain(snapshot, begin, run).questions]
        if not asked:
            return account, {}
        findings = explain(snapshot, begin, run, self._pending(server, asked)).findings
        self._losses.report(*findings)
        repair = repair_of(findings, begin, self._losses.allowed)
        return account.share(repair.shared), repair.passed

    def held_against(
        self, server: Server, begin: Offset, snapshot: Snapshot, above: Mapping[str, int] | None, account: Account
    ) -> Account:
        """The account, when the streams are held against it (see there). Raises DataLossError."""
        ask = partial(count_read, server)
        account, lost = account.held(begin, snapshot, above, self._member, self._subscription.made, ask)
        self._losses.report(*lost)
        return account

    def _pending(self, server: Server, streams: Sequence[str]) -> dict[str, Evidence]:
        """What is pending in each group, for anybody."""
        commands = [("XPENDING", stream, self._member.group) for stream in streams]
        found = {}
        for command, reply in zip(commands, server.pipeline(commands), strict=True):
            if isinstance(reply, ReplyError):
                raise server.error_of(reply, command)
            last = StreamId.parse(reply[2]) if reply[0] else MIN_ID
            found[command[1]] = Evidence(pending=reply[0], last_pending=last)
        return found


def as_moved(begin: Offset, moved: Moves) -> Offset:
    """The checkpoint, with the positions that the run goes on from (failOnDataLoss=false)."""
    for stream, (was, now) in moved.items():
        begin = begin.at(stream, now) if begin[stream] == was else begin
    return begin


def _moves(begin: Offset, repair: Repair) -> Moves:
    """Where the query goes on elsewhere than at the checkpoint."""
    positions = repair.begin.positions
    return {stream: (begin[stream], now) for stream, now in positions.items() if now != begin[stream]}


def past_what_was_passed_over(
    begin: Offset, passed: Mapping[str, StreamId], states: Mapping[str, GroupState]
) -> Offset:
    """The checkpoint behind what the run has accepted not to read, of streams with nothing pending for us."""
    for stream, position in passed.items():
        if stream in states and not states[stream].ours and begin[stream] < position:
            begin = begin.at(stream, position)
    return begin
