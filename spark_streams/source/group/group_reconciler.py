"""The query's groups at a trigger: asked for, held against the checkpoint, and mended."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from spark_streams.errors import DataLossError
from spark_streams.ids import MIN_ID, StreamId
from spark_streams.operator_commands import seek_command
from spark_streams.retention.commit_mark import Mark, committed_key
from spark_streams.source.group.commit_marks import Marks
from spark_streams.source.group.data_loss import DataLoss
from spark_streams.source.group.gone_or_moved import Mender, is_another, vanished
from spark_streams.source.group.group_admin import Start, create_consumers, create_groups_at, set_groups_to
from spark_streams.source.group.group_state import (
    GroupState,
    fetch_state,
    missing,
    require_alone,
    require_none_released,
    shared_above,
)
from spark_streams.source.group.initial_position import InitialPositionKeys, save_initial_positions
from spark_streams.source.group.loss_account import LossAccount
from spark_streams.source.group.subscription import Subscription
from spark_streams.source.membership import Membership
from spark_streams.source.offset import Offset
from spark_streams.wire.connection import ReplyError
from spark_streams.wire.server import Server
from spark_streams.wire.xinfo import StreamState

_log = logging.getLogger("spark_streams.source")


class GroupReconciler:
    """subscription: what is read; account: what losses are held against; alone: the checkpoint is the only truth
    (noAck). heads: the streams when they were last asked for."""

    def __init__(self, losses: DataLoss, subscription: Subscription, account: LossAccount, alone: bool) -> None:
        self._losses = losses
        self._subscription = subscription
        self.account = account
        self._counts = account.counts
        self._alone = alone
        self.heads: Mapping[str, StreamState] = {}
        self._moved: dict[str, tuple[StreamId, StreamId]] = {}  # the checkpoint's position, and what it is now
        self._passed: dict[str, StreamId] = {}  # up to where this run goes on without what nobody was given

    @property
    def _member(self) -> Membership:
        return self._subscription.member

    def reconciled(
        self,
        server: Server,
        begin: Offset,
        streams: Sequence[str],
        marks: Marks,
        ends: Mapping[str, StreamId],
        afresh: bool,
        unlisted: bool,
    ) -> tuple[Offset, dict[str, GroupState]]:
        """The groups as they are, once they agree with the checkpoint, and the checkpoint without streams that are
        gone. marks: up to where batches are committed; ends: where groups stand above the checkpoint, with what was
        reserved ahead; afresh: nothing is known of what an earlier run did; unlisted: an earlier run may have left
        groups above the checkpoint without a pending list (noAck).

        Raises DataLossError, GroupMissingError, StreamStateError, GroupSharedError.
        """
        begin = self.as_moved(begin)
        if afresh:
            for stream, known in begin.counts.items():
                self._counts.of.setdefault(stream, known)
        self.heads, groups = fetch_state(server, self._member, streams, self.heads)
        begin = self._without_vanished(server, begin, groups)
        groups |= self._set_to_checkpoint(server, begin, groups, ends, afresh, unlisted)
        mended = Mender(server, self._member, self._losses, self._counts, marks.of, ends).run(begin, self.heads, groups)
        create_groups_at(server, self._member, mended.made)
        set_groups_to(server, self._member, {**mended.moved, **mended.forward})
        lowered = self._lower(begin, mended.begin)
        marks.drop(server, [*{*mended.made, *mended.moved, *lowered, *mended.void}])
        if mended.made or mended.moved or mended.forward:
            states = self.now(server, list(groups))
        else:
            states = {stream: state for stream, state in groups.items() if state is not None}
        create_consumers(server, self._member, [stream for stream, state in states.items() if not state.known])
        return mended.begin, states

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

    def _without_vanished(self, server: Server, begin: Offset, groups: dict[str, GroupState | None]) -> Offset:
        """The checkpoint without streams of a pattern that are gone, which are read no more; taken from `groups`, too.
        Raises DataLossError where that is not allowed and they had entries for us."""
        if not self._subscription.by_pattern:
            return begin
        gone = [stream for stream in groups if not self.heads[stream].exists]
        for stream in gone:
            left = self._counts.forget(stream)
            had_some = begin[stream] > MIN_ID or (left is not None and left.added > left.read)
            if had_some and not self._losses.allowed:
                raise missing(server, self._member, stream, stream_too=True)
            vanished(self._losses, stream, left)
            del groups[stream]
        self.heads = {stream: head for stream, head in self.heads.items() if stream in groups}
        return begin.without(gone) if gone else begin

    def _set_to_checkpoint(
        self,
        server: Server,
        begin: Offset,
        groups: Mapping[str, GroupState | None],
        ends: Mapping[str, StreamId],
        afresh: bool,
        unlisted: bool,
    ) -> dict[str, GroupState]:
        """Groups that were read without a pending list, by this run or by the one before."""
        if self._alone:
            return self.alone(server, begin, groups, ends, afresh)
        if unlisted and afresh:
            return self._set_back(server, begin, self._without_listed(server, begin, groups), {}, afresh=False)
        return {}

    def _without_listed(
        self, server: Server, begin: Offset, groups: Mapping[str, GroupState | None]
    ) -> dict[str, GroupState]:
        """Return the groups that may be set back. A group that others read from may not: it must stand at the
        checkpoint, or have entries above it that are pending for us (a run with a pending list has set it back
        already). Raises GroupSharedError."""
        found = {stream: state for stream, state in groups.items() if state is not None}
        shared = [stream for stream, state in found.items() if state.is_shared(self._member)]
        group, consumer = self._member.group, self._member.consumer
        asked = [("XPENDING", stream, group, f"({begin[stream]}", "+", 1, consumer) for stream in shared]
        for command, reply in zip(asked, server.pipeline(asked), strict=True):
            stream = command[1]
            if isinstance(reply, ReplyError):
                raise server.error_of(reply, command)
            state = found.pop(stream)
            if not reply and state.last_delivered > begin[stream]:
                raise shared_above(self._member, stream, state, begin[stream])
        return found

    def now(self, server: Server, streams: Sequence[str]) -> dict[str, GroupState]:
        """The groups as they are. Raises GroupMissingError, DataLossError where one is gone."""
        self.heads, groups = fetch_state(server, self._member, streams, self.heads)
        states = {}
        for stream, state in groups.items():
            if state is None:
                raise missing(server, self._member, stream, not self.heads[stream].exists)
            states[stream] = state
        return states

    def alone(
        self,
        server: Server,
        begin: Offset,
        states: Mapping[str, GroupState | None],
        ends: Mapping[str, StreamId],
        afresh: bool,
    ) -> dict[str, GroupState]:
        """noAck: nobody else may read from the groups, and they stand at the checkpoint, or at these `ends`: one that
        is above is set back, `afresh` one that is below is moved, too. The groups then.

        The position of a stream that is new is kept until the checkpoint has one. Raises GroupSharedError.
        """
        groups = {stream: state for stream, state in states.items() if state is not None}
        for stream, state in groups.items():
            require_alone(self._member, stream, state)
            require_none_released(self._member, stream, state)
        return self._set_back(server, begin, groups, ends, afresh)

    def _set_back(
        self,
        server: Server,
        begin: Offset,
        groups: dict[str, GroupState],
        ends: Mapping[str, StreamId],
        afresh: bool,
    ) -> dict[str, GroupState]:
        back: dict[str, Start] = {}
        new = {stream: state.last_delivered for stream, state in groups.items() if stream not in begin.positions}
        kept = {**begin.positions, **save_initial_positions(server, InitialPositionKeys("start", self._member), new)}
        for stream, state in groups.items():
            expected = ends.get(stream, kept[stream])
            is_elsewhere = state.last_delivered != expected if afresh else state.last_delivered > expected
            head, known = self.heads[stream], begin.counts.get(stream)
            # If this is still the stream that the checkpoint speaks of.
            if is_elsewhere and kept[stream] <= head.last and not is_another(head, kept[stream], known):
                back[stream] = Start(kept[stream], None if known is None else known.read)
                read = back[stream].read
                groups[stream] = state._replace(last_delivered=kept[stream], entries_read=read, lag=None)
        set_groups_to(server, self._member, back)
        return groups

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
