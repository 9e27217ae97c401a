"""The query's groups at a trigger, held against the checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from spark_streams.errors import DataLossError, StreamStateError
from spark_streams.ids import MIN_ID, StreamId
from spark_streams.source.entry_count import Count
from spark_streams.source.group.commit_marks import Mark, Marks
from spark_streams.source.group.count_entries import count_read
from spark_streams.source.group.data_loss import GO_ON, DataLoss, shared
from spark_streams.source.group.entry_counts import Counts, held_above
from spark_streams.source.group.group_admin import Start, create_consumers, create_groups_at, set_groups_to
from spark_streams.source.group.group_state import GroupState, Reserved, fetch_state, missing, require_alone
from spark_streams.source.group.initial_position import InitialPositionKeys, save_initial_positions
from spark_streams.source.group.subscription import Subscription
from spark_streams.source.membership import Membership
from spark_streams.source.offset import Offset
from spark_streams.wire.connection import Connection, ReplyError
from spark_streams.wire.xinfo import StreamState

_log = logging.getLogger("spark_streams.source")


class GroupReconciler:
    """subscription: what is read, and which groups this run has made; alone: the checkpoint is the only truth
    (noAck). heads: the streams at the last look; counts: what losses are held against."""

    def __init__(self, losses: DataLoss, subscription: Subscription, alone: bool) -> None:
        self._losses = losses
        self._subscription = subscription
        self._alone = alone
        self.heads: Mapping[str, StreamState] = {}
        self.counts = Counts()
        self._lowered: dict[str, tuple[StreamId, StreamId]] = {}  # the checkpoint's position, and what it is now

    def reconciled(
        self,
        server: Connection,
        member: Membership,
        begin: Offset,
        streams: Sequence[str],
        marks: Marks,
        ends: Mapping[str, StreamId],
        afresh: bool,
    ) -> tuple[Offset, dict[str, GroupState]]:
        """The groups as they are, once they agree with the checkpoint, and the checkpoint without streams that are
        gone. marks: up to where batches are committed; ends: where groups stand above the checkpoint, with what was
        reserved ahead; afresh: nothing is known of what an earlier run did.

        Raises DataLossError, GroupMissingError, StreamStateError, GroupSharedError.
        """
        for stream, (was, now) in self._lowered.items():
            begin = begin.at(stream, now) if begin[stream] == was else begin
        if afresh:
            for stream, known in begin.counts.items():
                self.counts.of.setdefault(stream, known)
        self.heads, found = fetch_state(server, member, streams, self.heads)
        if self._subscription.by_pattern:
            gone = [stream for stream in streams if not self.heads[stream].exists]
            for stream in gone:
                left = self.counts.forget(stream)
                had_some = begin[stream] > MIN_ID or (left is not None and left.added > left.read)
                if had_some and not self._losses.allowed:
                    raise missing(server, member, stream, stream_too=True)
                vanished(self._losses, stream, left)
            self.heads = {stream: head for stream, head in self.heads.items() if stream not in gone}
            found = {stream: state for stream, state in found.items() if stream not in gone}
            begin = begin.without(gone) if gone else begin
        if self._alone:
            found.update(self.alone(server, member, begin, found, ends, afresh))
        elif begin.no_ack and afresh:
            # The run before was without a pending list. Where something is pending, this was done before.
            unlisted = {stream: state for stream, state in found.items() if state is not None and not state.ours}
            found.update(self.alone(server, member, begin, unlisted, {}, afresh=False))
        mended = Reconciler(server, member, self._losses, self.counts, marks.of, ends).run(begin, self.heads, found)
        create_groups_at(server, member, mended.made)
        set_groups_to(server, member, mended.moved)
        lowered = {stream: at for stream, at in mended.begin.positions.items() if at != begin[stream]}
        self._lowered |= {stream: (begin[stream], at) for stream, at in lowered.items()}
        begin = mended.begin
        marks.drop(server, [*{*mended.made, *mended.moved, *lowered, *mended.void}])
        if mended.made or mended.moved:
            states = self.now(server, member, list(found))
        else:
            states = {stream: state for stream, state in found.items() if state is not None}
        create_consumers(server, member, [stream for stream, state in states.items() if not state.known])
        return begin, states

    def now(self, server: Connection, member: Membership, streams: Sequence[str]) -> dict[str, GroupState]:
        """The groups as they are. Raises GroupMissingError, DataLossError where one is gone."""
        self.heads, found = fetch_state(server, member, streams, self.heads)
        states = {}
        for stream, state in found.items():
            if state is None:
                raise missing(server, member, stream, not self.heads[stream].exists)
            states[stream] = state
        return states

    def alone(
        self,
        server: Connection,
        member: Membership,
        begin: Offset,
        states: Mapping[str, GroupState | None],
        ends: Mapping[str, StreamId],
        afresh: bool,
    ) -> dict[str, GroupState]:
        """noAck: nobody else may read from the groups, and they stand at the checkpoint, or at these `ends`: one that
        is above is set back, `afresh` one that is below is moved, too. The groups then.

        The position of a stream that is new is kept until the checkpoint has one. Raises GroupSharedError.
        """
        back: dict[str, Start] = {}
        found = {stream: state for stream, state in states.items() if state is not None}
        for stream, state in found.items():
            require_alone(member, stream, state)
        new = {stream: state.last_delivered for stream, state in found.items() if stream not in begin.positions}
        kept = {**begin.positions, **save_initial_positions(server, InitialPositionKeys("start", member), new)}
        for stream, state in found.items():
            at = ends.get(stream, kept[stream])
            is_elsewhere = state.last_delivered != at if afresh else state.last_delivered > at
            head, known = self.heads[stream], begin.counts.get(stream)
            # If this is still the stream that the checkpoint speaks of.
            if is_elsewhere and kept[stream] <= head.last and not is_another(head, kept[stream], known):
                back[stream] = Start(kept[stream], None if known is None else known.read)
                read = back[stream].read
                found[stream] = replace(state, last_delivered=kept[stream], entries_read=read, lag=None)
        set_groups_to(server, member, back)
        return found

    # -- what is lost of what the groups have yet to read -----------------------------------------------------------

    def account(
        self,
        server: Connection,
        member: Membership,
        begin: Offset,
        states: dict[str, GroupState],
        above: Mapping[str, int] | None,
    ) -> None:
        """Hold what the streams have against what was read of them. above: how many entries are reserved above the
        checkpoint, where only that is known; None: go on from what this run knows. Raises DataLossError."""
        for stream, state in states.items():
            head = self.heads[stream]
            self.counts.moved(stream, state.last_delivered)
            self._recount(server, member, begin, stream, state, above)
            self._leave_out_what_is_below(server, stream, state)
            lost = self.counts.lost(stream, head, state.last_delivered)
            if lost:
                self._lost(member, stream, lost, state.last_delivered)
            self.counts.balance(stream, head, state)
            known = self.counts.of.get(stream)
            if known is not None and lost and self._alone:
                set_groups_to(server, member, {stream: Start(state.last_delivered, known.read)})
            if known is not None and (state.entries_read is None or (lost and self._alone)):
                states[stream] = replace(state, entries_read=known.read)

    def forget(self, streams: Sequence[str]) -> None:
        """What was read of these up to where their groups stand is not known."""
        for stream in streams:
            self.counts.forget(stream)

    def counts_at(self, remaining: Mapping[str, int]) -> dict[str, Count]:
        """What is known, for the checkpoint. remaining: how many entries of each stream are reserved above it."""
        return {
            stream: replace(known, read=known.read - remaining.get(stream, 0))
            for stream, known in self.counts.of.items()
        }

    def took(self, member: Membership, before: Mapping[str, GroupState], reserved: Reserved) -> None:
        """These were delivered. What a stream held at the last look and the group was not given when it had come to
        the end of that is lost. before: the groups at the last look. Raises DataLossError."""
        self.counts.took(reserved.runs)
        ends = {run.stream: run.last for run in reserved.runs}
        for stream, state in reserved.states.items():
            self.counts.moved(stream, state.last_delivered)
            if shared(member, state):
                self.counts.share(stream)
            elif ends.get(stream, self.heads[stream].last) == self.heads[stream].last:
                self._all_read(member, stream, before[stream].last_delivered)

    def _all_read(self, member: Membership, stream: str, above: StreamId) -> None:
        known, added = self.counts.of.get(stream), self.heads[stream].added
        if known is None or added is None:
            return
        if added > known.read:
            self._lost(member, stream, added - known.read, above)
        self.counts.of[stream] = replace(known, read=added, missed=known.missed + max(0, added - known.read))

    def _lost(self, member: Membership, stream: str, lost: int, above: StreamId) -> None:
        self._losses.report(
            stream,
            lost,
            f"above {above} were trimmed or deleted before group {member.group!r} read them",
            f"keep the stream longer than the lag of its slowest group, or {GO_ON}",
        )

    def _recount(
        self,
        server: Connection,
        member: Membership,
        begin: Offset,
        stream: str,
        state: GroupState,
        above: Mapping[str, int] | None,
    ) -> None:
        """What is known to have been read up to the group's position."""
        head, known = self.heads[stream], self.counts.of.get(stream)
        if known is not None and head.added is not None and head.added < known.added:
            self.counts.forget(stream)  # it was of another stream under this name
            known = None
        if head.added is None:
            self.counts.forget(stream)
        elif shared(member, state):
            missed = 0 if known is None else known.missed
            if state.entries_read is not None:
                self.counts.of[stream] = Count(state.entries_read + missed, head.added, missed, shared=True)
            else:
                self.counts.forget(stream)  # nobody can tell, until the group has come to the end
        elif known is None or known.shared:
            self._first_count(server, begin, stream, state, known)
        elif above is not None:
            logged = begin.counts.get(stream, known)
            if not logged.shared:
                known = replace(logged, read=logged.read + above.get(stream, 0))
            self.counts.of[stream] = known

    def _first_count(
        self, server: Connection, begin: Offset, stream: str, state: GroupState, known: Count | None
    ) -> None:
        head, at = self.heads[stream], state.last_delivered
        missed = 0 if known is None else known.missed
        read = None if state.entries_read is None else state.entries_read + missed
        if read is None or (head.length and at >= head.last):
            # The group has read all there is, or its past is not known: what it has missed was before our time.
            read = count_read(server, stream, head, at)
        elif not begin.token and held_above(head, at) is None and not self._made_amid(stream, at):
            # An earlier run has made it, ahead of the stream maybe: then what was added below it since is not in its
            # count. It was amid the stream where all that lies below it was there when it was made.
            counted = count_read(server, stream, head, at)
            if counted is not None and head.added is not None and counted - (head.added - head.length) != read:
                read = counted
        if read is not None and head.added is not None:
            self.counts.of[stream] = Count(read, head.added, missed)

    def _leave_out_what_is_below(self, server: Connection, stream: str, state: GroupState) -> None:
        """A group that stands above all that its stream has had so far: what is added below it is none of ours. Where
        that is trimmed before it was seen, it counts as lost: nobody can tell it from what lay above."""
        head, at, known = self.heads[stream], state.last_delivered, self.counts.of.get(stream)
        if known is None or head.added is None or not (known.ahead or at > head.last):
            return
        if at > head.last or held_above(head, at) is None:
            read = count_read(server, stream, head, at)
            if read is not None:
                self.counts.of[stream] = replace(known, read=read)

    def _made_amid(self, stream: str, at: StreamId) -> bool:
        made = self._subscription.made.get(stream)
        return made is not None and made.at == at and made.amid

    def explain(self, server: Connection, member: Membership, begin: Offset, states: Mapping[str, GroupState]) -> None:
        """Why groups stand above the checkpoint, where nobody else reads: what lies between is pending for us, or was
        read by somebody who has left since (the server counts it as read), or the group was set forward. Raises
        DataLossError for the last."""
        asked = [
            stream
            for stream, state in states.items()
            if state.last_delivered > begin[stream] and not shared(member, state) and self._was_ours(begin, stream)
        ]
        summaries = server.pipeline([("XPENDING", stream, member.group) for stream in asked])
        for stream, summary in zip(asked, summaries, strict=True):
            if isinstance(summary, ReplyError):
                raise server.error_of(summary, ("XPENDING", stream, member.group))
            last = StreamId.parse(summary[2]) if summary[0] else MIN_ID
            reached = max(begin[stream], last)
            if reached < states[stream].last_delivered and states[stream].counted:
                self.counts.share(stream)
            elif reached < states[stream].last_delivered:
                self._passed_over(member, stream, reached, states[stream].last_delivered)

    def _was_ours(self, begin: Offset, stream: str) -> bool:
        known = begin.counts.get(stream)
        return bool(begin.token) and known is not None and not known.shared

    def _passed_over(self, member: Membership, stream: str, reached: StreamId, position: StreamId) -> None:
        problem = (
            f"group {member.group!r} of stream {stream!r} stands at {position}, and nothing above {reached} was given "
            f"to anybody: it was set forward. Set it back (XGROUP SETID {stream} {member.group} {reached})"
        )
        if not self._losses.allowed:
            raise DataLossError(f"{problem}, or set failOnDataLoss=false to go on without what lies between")
        _log.warning("%s", problem)


def vanished(losses: DataLoss, stream: str, known: Count | None) -> None:
    """A stream is gone with all that it held. known: what was known of it."""
    if known is not None:
        _log.warning("stream %r is gone", stream)
        losses.add(stream, max(0, known.added - known.read), "the stream is gone")


def is_another(head: StreamState, at: StreamId, known: Count | None) -> bool:
    """Whether a stream whose group is gone is another one under its name, or none, or emptied. at: where the group
    stood."""
    if head.length and head.first is not None and head.first <= at <= head.last:
        return False
    added, read = (0, 0) if known is None else (known.added, known.read)
    return not head.exists or head.added is None or head.added < added or (read > 0 and head.added == head.length)


@dataclass
class Mended:
    """What it takes to bring groups back to where the checkpoint stands. made, moved: groups to be made, to be set;
    void: streams whose marks speak of what is going to be read again; begin: the checkpoint, where it speaks of entries
    that the server has lost."""

    begin: Offset
    made: dict[str, Start] = field(default_factory=dict)
    moved: dict[str, Start] = field(default_factory=dict)
    void: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Reconciler:
    """Holds groups against the checkpoint. marks: up to where the server knows the query's batches to be committed;
    ahead: streams that something was reserved from above the checkpoint; server: for messages."""

    server: Connection
    member: Membership
    losses: DataLoss
    counts: Counts
    marks: Mapping[str, Mark]
    ahead: Collection[str] = ()

    def run(self, begin: Offset, heads: Mapping[str, StreamState], states: Mapping[str, GroupState | None]) -> Mended:
        """What is to be done. Raises DataLossError, GroupMissingError, StreamStateError where something is lost, or
        was moved, and that is not allowed."""
        mended = Mended(begin)
        for stream, state in states.items():
            head, at, mark = heads[stream], begin[stream], self.marks.get(stream)
            if begin.token and state is not None and mark is not None and mark.at > state.last_delivered == at:
                mended.void.add(stream)  # somebody has set the group back to an older copy of the checkpoint
            if state is None:
                self._gone(mended, stream, head, at)
            elif state.last_delivered < at:
                self._below(mended, stream, head, state, at)
            elif state.last_delivered > at:
                self._above(mended, stream, state, at)
        return mended

    def _start(self, begin: Offset, stream: str) -> Start:
        """The checkpoint's position."""
        known = begin.counts.get(stream)
        return Start(begin[stream], None if known is None else known.read)

    def _gone(self, mended: Mended, stream: str, head: StreamState, at: StreamId) -> None:
        if not self.losses.allowed:
            raise missing(self.server, self.member, stream, not head.exists)
        start = self._start(mended.begin, stream)
        if is_another(head, at, self.counts.of.get(stream)):
            vanished(self.losses, stream, self.counts.forget(stream))
            start = Start(at) if head.exists and head.last >= at else Start(MIN_ID, 0)
            mended.begin = mended.begin.at(stream, start.at)
        mended.made[stream] = start
        _log.warning("stream %r: group %r is gone and is made again at %s", stream, self.member.group, start.at)

    def _below(self, mended: Mended, stream: str, head: StreamState, state: GroupState, at: StreamId) -> None:
        """The group was made anew or set back, or the server came back from an older state."""
        alone = not shared(self.member, state)
        if self.losses.allowed and not state.known and is_another(head, at, self.counts.of.get(stream)):
            vanished(self.losses, stream, self.counts.forget(stream))
            if alone and head.last >= at:
                mended.moved[stream] = Start(at)
            else:  # its ids begin anew
                mended.begin = mended.begin.at(stream, state.last_delivered)
        elif self.losses.allowed and alone and head.last < at:
            self._restored(mended, stream, head)
        elif self.losses.allowed and alone:
            mended.moved[stream] = self._start(mended.begin, stream)
            known = self.counts.of.get(stream)
            if known is not None and head.added is not None and head.added < known.added:
                # The server came back from an older state, and others have come since: what was there is gone.
                self.counts.forget(stream)
                self.losses.add(stream, max(0, known.added - known.read), "the server came back without them")
                mended.moved[stream] = Start(at)
            _log.warning(
                "group %r of stream %r stands at %s, below the checkpoint's %s, and is set there: what lies between "
                "was read", self.member.group, stream, state.last_delivered, at,
            )  # fmt: skip
        else:
            raise StreamStateError(
                f"group {self.member.group!r} of stream {stream!r} stands at {state.last_delivered}, below the "
                f"checkpoint's {at}: it was made anew or set back, or the server came back from an older state; set it "
                "to the checkpoint's position (XGROUP SETID), or start with a new checkpoint"
                + (f"; consumer {state.others[0].name!r} reads from it, too" if not alone else "")
            )

    def _restored(self, mended: Mended, stream: str, head: StreamState) -> None:
        """The server has lost its last entries, among them such as we have read."""
        known = self.counts.forget(stream)
        if known is not None and head.added is not None:
            gone = max(0, known.added - head.added)
            self.losses.add(stream, gone, f"the server came back without what was added above {head.last}")
        mended.moved[stream] = Start(head.last, head.added)
        mended.begin = mended.begin.at(stream, head.last)

    def _above(self, mended: Mended, stream: str, state: GroupState, at: StreamId) -> None:
        begin, alone = mended.begin, not shared(self.member, state)
        mark = self.marks.get(stream)
        position = state.last_delivered
        if mark is not None and begin.token and mark.at > at:
            problem = (
                f"the checkpoint stands at {at} of stream {stream!r}, and consumer {self.member.consumer!r} of group "
                f"{self.member.group!r} has committed all up to {mark.at}: it is an older copy of the checkpoint, or "
                f"its last files are gone. Restore the newest one; or set the group back (XGROUP SETID {stream} "
                f"{self.member.group} {at}) to read again what lies between"
            )
        elif not state.known and self._was_entered(begin, stream, alone):
            problem = (
                f"group {self.member.group!r} of stream {stream!r} no longer knows consumer {self.member.consumer!r}: "
                f"it was made anew, or the consumer was deleted, and what lies between the checkpoint's {at} and the "
                f"group's {position} would be passed over; set the group back (XGROUP SETID)"
            )
        else:
            return
        if not self.losses.allowed:
            raise DataLossError(f"{problem}, or set failOnDataLoss=false")
        if alone:
            mended.moved[stream] = self._start(begin, stream)
        _log.warning("%s%s", problem, ": it is set back" if alone else ": others read from it, and it stays")

    def _was_entered(self, begin: Offset, stream: str, alone: bool) -> bool:
        """Whether our consumer must be in the group by now. Checkpoints that count were written by a version that
        enters it at once."""
        entered = stream in begin.shares or stream in self.ahead or stream in begin.counts
        return entered or (stream in begin.positions and alone)
