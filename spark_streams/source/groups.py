"""The query's groups at a trigger, held against the checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from spark_streams.errors import DataLossError
from spark_streams.ids import MIN_ID, StreamId
from spark_streams.source.committed import Marks
from spark_streams.source.counting import count_read
from spark_streams.source.counts import Count, Counts
from spark_streams.source.group import GroupState, Membership, StreamState, look, missing
from spark_streams.source.losses import Losses, Reconciler, shared, vanished
from spark_streams.source.offsets import Offset
from spark_streams.source.reserve import Reserved, require_alone
from spark_streams.source.start import Pins, Start, create_consumers, create_groups_at, pin, set_groups_to
from spark_streams.wire.connection import Connection, ReplyError

_log = logging.getLogger("spark_streams.source")


class Groups:
    """may_vanish: a stream that is gone is read no more (streamsPattern); alone: the checkpoint is the only truth
    (noAck). heads: the streams at the last look; counts: what losses are held against."""

    def __init__(self, losses: Losses, may_vanish: bool, alone: bool) -> None:
        self._losses = losses
        self._may_vanish = may_vanish
        self._alone = alone
        self.heads: Mapping[str, StreamState] = {}
        self.counts = Counts()
        self._lowered: dict[str, tuple[StreamId, StreamId]] = {}  # the checkpoint's position, and what it is now
        self._beyond: set[str] = set()  # streams that had not come to their group's position at the last look

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
        self.heads, found = look(server, member, streams, self.heads)
        if self._may_vanish:
            gone = [stream for stream in streams if not self.heads[stream].exists]
            for stream in gone:
                if not self._losses.allowed and begin[stream] > MIN_ID:
                    raise missing(server, member, stream, stream_too=True)
                vanished(self._losses, stream, self.counts.forget(stream))
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
        self.heads, found = look(server, member, streams, self.heads)
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
        kept = {**begin.positions, **pin(server, Pins("start", member), new)}
        for stream, state in found.items():
            at = ends.get(stream, kept[stream])
            is_elsewhere = state.last_delivered != at if afresh else state.last_delivered > at
            # If this is still the stream that the checkpoint speaks of.
            if is_elsewhere and kept[stream] <= self.heads[stream].last:
                known = begin.counts.get(stream)
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
            if stream in self._beyond:
                self.counts.forget(stream)  # what is added before that is none of ours
            self._beyond -= {stream}
            self._beyond |= {stream} if state.last_delivered > head.last else set()
            self._recount(server, member, begin, stream, state, above)
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
            if stream not in self._beyond
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
        if not self._losses.allowed:
            raise DataLossError(
                f"stream {stream!r}: {lost} entries above {above} were trimmed or deleted before group "
                f"{member.group!r} read them; keep the stream longer than the lag of its slowest group, or set "
                "failOnDataLoss=false to go on without them"
            )
        self._losses.add(stream, lost, f"trimmed or deleted before group {member.group!r} read them")

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
        if read is not None and head.added is not None:
            self.counts.of[stream] = Count(read, head.added, missed)

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
