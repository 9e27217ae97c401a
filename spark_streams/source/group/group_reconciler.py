"""The query's groups at a trigger: asked for, held against the checkpoint, and mended."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spark_streams.errors import DataLossError
from spark_streams.ids import MIN_ID, StreamId
from spark_streams.operator_commands import seek_command
from spark_streams.retention.commit_mark import Mark, committed_key
from spark_streams.source.group.commit_marks import delete_marks
from spark_streams.source.group.data_loss import DataLoss
from spark_streams.source.group.gone_or_moved import Mender, vanished
from spark_streams.source.group.group_admin import Start, create_consumers, create_groups_at, set_groups_to
from spark_streams.source.group.group_state import (
    GroupState,
    fetch_state,
    missing,
    require_alone,
    require_none_released,
    shared_above,
)
from spark_streams.source.group.loss_account import LossAccount
from spark_streams.source.group.rows_read import RowsRead
from spark_streams.source.group.subscription import Subscription
from spark_streams.source.membership import Membership
from spark_streams.source.offset import Offset
from spark_streams.wire.connection import ReplyError
from spark_streams.wire.server import Server
from spark_streams.wire.xinfo import StreamState

_log = logging.getLogger("spark_streams.source")


@dataclass(frozen=True)
class Memory:
    """What this run knows of its groups, per stream. heads: the streams when they were last asked for; marks: up to
    where batches are committed; ends: where groups stand above the checkpoint, with what was reserved ahead; bookmarks:
    where this run has left them (noAck). is_known: False if the server is to be asked, as after a restart."""

    heads: Mapping[str, StreamState] = field(default_factory=dict)
    marks: Mapping[str, Mark] = field(default_factory=dict)
    ends: Mapping[str, StreamId] = field(default_factory=dict)
    bookmarks: Mapping[str, StreamId] = field(default_factory=dict)
    is_known: bool = False


@dataclass(frozen=True)
class Reconciled:
    """begin: the checkpoint without what the server has lost; heads, groups: the streams and their groups, which agree
    with it; unmarked: streams whose commit marks were deleted, because they spoke of something else."""

    begin: Offset
    heads: Mapping[str, StreamState]
    groups: dict[str, GroupState]
    unmarked: Sequence[str]


class GroupReconciler:
    """subscription: what is read; account: what losses are held against; no_ack: the groups are bookmarks
    (group.bookmarks)."""

    def __init__(self, losses: DataLoss, subscription: Subscription, account: LossAccount, no_ack: bool) -> None:
        self._losses = losses
        self._subscription = subscription
        self.account = account
        self._counts = account.counts
        self._no_ack = no_ack
        self._moved: dict[str, tuple[StreamId, StreamId]] = {}  # the checkpoint's position, and what it is now
        self._passed: dict[str, StreamId] = {}  # up to where this run goes on without what nobody was given

    @property
    def _member(self) -> Membership:
        return self._subscription.member

    def reconciled(self, server: Server, begin: Offset, streams: Sequence[str], memory: Memory) -> Reconciled:
        """The groups as they are, once they agree with the checkpoint.

        Raises DataLossError, GroupMissingError, StreamStateError, GroupSharedError.
        """
        begin, afresh = self.as_moved(begin), not memory.is_known
        if afresh:
            for stream, known in begin.counts.items():
                self._counts.of.setdefault(stream, known)
        heads, groups = fetch_state(server, self._member, streams, memory.heads)
        if self._subscription.by_pattern:
            begin = self._without_vanished(server, begin, heads, groups)
        if any(count.before for count in begin.counts.values()):
            read = RowsRead(server, self._member, self._losses, {} if afresh else self._counts.of)
            begin = read.counted(begin, heads, groups)
        was_no_ack = begin.no_ack and afresh and not self._no_ack
        if self._no_ack:
            self._require_alone(groups)
        if was_no_ack:
            self._require_none_above(server, begin, groups)
        bookmarks = {} if afresh and (self._no_ack or was_no_ack) else memory.bookmarks if self._no_ack else None
        mender = Mender(server, self._member, self._losses, self._counts, memory.marks, memory.ends, bookmarks)
        mended = mender.run(begin, heads, groups)
        moved = {**mended.moved, **mended.forward}
        if mended.made:
            create_groups_at(server, self._member, mended.made)
        if moved:
            set_groups_to(server, self._member, moved)
        unmarked = [*{*mended.made, *mended.moved, *self._lower(begin, mended.begin), *mended.void}]
        if unmarked:
            delete_marks(server, self._member, unmarked)
        states = {stream: state for stream, state in groups.items() if state is not None}
        if mended.made or moved:
            heads, states = self.now(server, list(groups), heads)
        unknown = [stream for stream, state in states.items() if not state.known]
        if unknown:
            create_consumers(server, self._member, unknown)
        if self._no_ack:
            states = self._bookmarks(states, mended.begin.positions)
        elif was_no_ack:
            states = self._delivering(server, mended.begin, states)
        return Reconciled(mended.begin, heads, states, unmarked)

    def as_moved(self, begin: Offset) -> Offset:
        """The checkpoint, with the positions that this run goes on from (failOnDataLoss=false)."""
        for stream, (was, now) in self._moved.items():
            begin = begin.at(stream, now) if begin[stream] == was else begin
        return begin

    def _lower(self, begin: Offset, mended: Offset) -> list[str]:
        """Remember where the checkpoint stands now. Returns the streams on which it was set back."""
        moved = {
            stream: (begin[stream], position)
            for stream, position in mended.positions.items()
            if position != begin[stream]
        }
        self._moved |= moved
        return [stream for stream, (was, now) in moved.items() if now < was]

    def _without_vanished(
        self, server: Server, begin: Offset, heads: dict[str, StreamState], groups: dict[str, GroupState | None]
    ) -> Offset:
        """The checkpoint without streams of a pattern that are gone, which are read no more; taken from `heads` and
        `groups`, too. Raises DataLossError where that is not allowed and they had entries for us."""
        gone = [stream for stream in groups if not heads[stream].exists]
        for stream in gone:
            left = self._counts.forget(stream)
            had_some = begin[stream] > MIN_ID or (left is not None and left.added > left.read)
            if had_some and not self._losses.allowed:
                raise missing(server, self._member, stream, stream_too=True)
            vanished(self._losses, stream, left)
            del heads[stream], groups[stream]
        return begin.without(gone) if gone else begin

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
        states = {}
        for stream, state in groups.items():
            if state is None:
                raise missing(server, self._member, stream, not heads[stream].exists)
            states[stream] = state
        return heads, self._bookmarks(states, {}) if self._no_ack else states

    def explain(
        self,
        server: Server,
        begin: Offset,
        states: Mapping[str, GroupState],
        given: Mapping[str, StreamId],
        marks: Mapping[str, Mark],
    ) -> None:
        """Why groups stand above the checkpoint, if nobody else reads: the entries between are pending for us, or were
        acknowledged before they were read (at-most-once, up to `given`), or were read by a consumer that has left since
        (the server counts them as read), or the group was set forward, or the checkpoint is an older copy whose commit
        mark is lost. Raises DataLossError for the last two.

        To be called before anything up to `begin` is acknowledged: that writes a mark that was lost. If the mark is
        there, it is not above the checkpoint, so the checkpoint is no older copy.
        """
        above = {stream: state for stream, state in states.items() if state.last_delivered > begin[stream]}
        asked = [s for s, state in above.items() if not state.is_shared(self._member) and self._was_ours(begin, s)]
        summaries = server.pipeline([("XPENDING", stream, self._member.group) for stream in asked])
        for stream, summary in zip(asked, summaries, strict=True):
            if isinstance(summary, ReplyError):
                raise server.error_of(summary, ("XPENDING", stream, self._member.group))
            last = StreamId.parse(summary[2]) if summary[0] else MIN_ID
            reached, position = max(begin[stream], last, given[stream]), states[stream].last_delivered
            if reached < position and states[stream].counted and stream in marks:
                self._counts.share(stream)
            elif reached < position:
                read = states[stream].entries_read
                known = begin.counts[stream].read if states[stream].counted else read
                self._passed_over(stream, reached, position, 0 if read is None or known is None else read - known)
                self._passed[stream] = position

    def past_what_was_passed_over(self, begin: Offset, states: Mapping[str, GroupState]) -> Offset:
        """The checkpoint behind what this run has accepted not to read, of streams with nothing pending for us."""
        for stream, position in self._passed.items():
            if stream in states and not states[stream].ours and begin[stream] < position:
                begin = begin.at(stream, position)
        return begin

    def _was_ours(self, begin: Offset, stream: str) -> bool:
        known = begin.counts.get(stream)
        return bool(begin.token) and known is not None and not known.shared

    def _passed_over(self, stream: str, reached: StreamId, position: StreamId, unknown: int) -> None:
        """unknown: how many entries the group has read of what lies between, and the checkpoint does not know of."""
        group, consumer = self._member.group, self._member.consumer
        back = seek_command(stream, group, reached)
        if unknown:
            key = committed_key(stream, group, consumer).decode("utf-8", "replace")
            problem = (
                f"group {group!r} of stream {stream!r} has read {unknown} entries above {reached} up to {position} "
                f"that the checkpoint does not know of, and the query's commit mark {key!r} is gone: the checkpoint is "
                "an older copy, another checkpoint was used with this group, or another consumer has read them and "
                "left. Start the query with the checkpoint that was used last. To read them again with this one, set "
                f"the group back ({back})"
            )
        else:
            problem = (
                f"group {group!r} of stream {stream!r} stands at {position}, and nothing above {reached} was given to "
                f"anybody: it was set forward. Set it back ({back})"
            )
        if not self._losses.allowed:
            raise DataLossError(f"{problem}, or set failOnDataLoss=false to go on without what lies between")
        _log.warning("%s", problem)
