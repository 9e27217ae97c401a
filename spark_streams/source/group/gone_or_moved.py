"""Groups and streams that are gone, and groups that stand elsewhere than the checkpoint: what it takes to bring them
back to where it stands, or an error that says what has happened to them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from spark_streams.errors import DataLossError, StreamStateError
from spark_streams.ids import MIN_ID, StreamId
from spark_streams.operator_commands import replay_command, seek_command
from spark_streams.retention.commit_mark import Mark
from spark_streams.source.entry_count import Count
from spark_streams.source.group.count_entries import count_between, still_there
from spark_streams.source.group.data_loss import GO_ON, DataLoss
from spark_streams.source.group.entry_counts import Counts
from spark_streams.source.group.group_admin import Start
from spark_streams.source.group.group_state import GroupState, missing
from spark_streams.source.membership import Membership
from spark_streams.source.offset import Offset
from spark_streams.wire.server import Server
from spark_streams.wire.xinfo import StreamState

_log = logging.getLogger("spark_streams.source")


def vanished(losses: DataLoss, stream: str, known: Count | None) -> None:
    """A stream is gone with all that it held. known: what was known of it."""
    if known is not None:
        _log.warning("stream %r is gone", stream)
        losses.add(stream, max(0, known.added - known.read), "the stream is gone")


def is_another(head: StreamState, position: StreamId, known: Count | None) -> bool:
    """Whether a stream whose group is gone is another one under its name, or none, or emptied. position: where
    the group stood."""
    if head.length and head.first is not None and head.first <= position <= head.last:
        return False
    if known is not None and head.last < position and not known.ahead and (head.added or 0) >= known.added:
        return True
    added, read = (0, 0) if known is None else (known.added, known.read)
    return not head.exists or head.added is None or head.added < added or (read > 0 and head.added == head.length)


@dataclass
class Mended:
    """What it takes to bring groups back to where the checkpoint stands. made, moved, forward: groups to be made, to be
    set, and to be set where the stream's mark stays true; void: streams whose marks speak of what is going to be read
    again; begin: the checkpoint, where it speaks of entries that the server has lost."""

    begin: Offset
    made: dict[str, Start] = field(default_factory=dict)
    moved: dict[str, Start] = field(default_factory=dict)
    forward: dict[str, Start] = field(default_factory=dict)
    void: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Mender:
    """Holds groups against the checkpoint. marks: up to where the server knows the query's batches to be committed;
    ahead: streams that something was reserved from above the checkpoint; left: where this run has left the groups, if
    they are bookmarks (noAck), None: they deliver; server: for messages; logged, in what follows: the checkpoint's
    position of a stream."""

    server: Server
    member: Membership
    losses: DataLoss
    counts: Counts
    marks: Mapping[str, Mark]
    ahead: Collection[str] = ()
    left: Mapping[str, StreamId] | None = None

    def run(self, begin: Offset, heads: Mapping[str, StreamState], states: Mapping[str, GroupState | None]) -> Mended:
        """What is to be done. Raises DataLossError, GroupMissingError, StreamStateError where something is lost, or
        was moved, and that is not allowed."""
        mended = Mended(begin)
        for stream, state in states.items():
            head, logged, mark = heads[stream], begin[stream], self.marks.get(stream)
            if begin.token and state is not None and mark is not None and mark.up_to > state.last_delivered == logged:
                mended.void.add(stream)  # somebody has set the group back to an older copy of the checkpoint
            if state is None:
                self._gone(mended, stream, head, logged)
            elif self.left is not None and stream in begin.positions:
                if state.last_delivered not in (logged, self.left.get(stream)):
                    self._elsewhere(mended, stream, head, state, logged)
            elif state.last_delivered < logged:
                self._below(mended, stream, head, state, logged)
            elif state.last_delivered > logged:
                self._above(mended, stream, state, logged)
        return mended

    def _start(self, begin: Offset, stream: str) -> Start:
        """The checkpoint's position."""
        known = begin.counts.get(stream)
        return Start(begin[stream], None if known is None else known.read)

    def _gone(self, mended: Mended, stream: str, head: StreamState, logged: StreamId) -> None:
        is_new = is_another(head, logged, self.counts.of.get(stream))
        if not self.losses.allowed:
            raise missing(self.server, self.member, stream, not head.exists or is_new, logged)
        start = self._start(mended.begin, stream)
        if is_new:
            vanished(self.losses, stream, self.counts.forget(stream))
            start = Start(logged) if head.exists and head.last >= logged else Start(MIN_ID, 0)
            mended.begin = mended.begin.at(stream, start.position)
        mended.made[stream] = start
        _log.warning("stream %r: group %r is gone and is made again at %s", stream, self.member.group, start.position)

    def _elsewhere(self, mended: Mended, stream: str, head: StreamState, state: GroupState, logged: StreamId) -> None:
        """A bookmark stands where this run has not set it: by a crash, a person, an earlier version, or a server that
        came back from an older state. Only in that case something is lost; the next commit sets it."""
        known = mended.begin.counts.get(stream)
        if self._is_anew(mended, stream, head, state, logged):
            return
        there = still_there(self.server, stream, head, logged, known)
        if known is not None and there is not None and there < known.read:
            self._restored(mended, stream, head, known, there)

    def _is_anew(self, mended: Mended, stream: str, head: StreamState, state: GroupState, logged: StreamId) -> bool:
        """Whether losses are allowed and the stream is another one under its name: then it is read from its group."""
        anew = self.losses.allowed and not state.known and is_another(head, logged, self.counts.of.get(stream))
        if anew:
            vanished(self.losses, stream, self.counts.forget(stream))
            if head.last < logged:  # its ids begin anew
                mended.begin = mended.begin.at(stream, state.last_delivered)
        return anew

    def _below(self, mended: Mended, stream: str, head: StreamState, state: GroupState, logged: StreamId) -> None:
        """The group was made anew or set back, or the server came back from an older state."""
        alone, logged_count = not state.is_shared(self.member), mended.begin.counts.get(stream)
        if self.losses.allowed and not state.known and is_another(head, logged, self.counts.of.get(stream)):
            vanished(self.losses, stream, self.counts.forget(stream))
            if alone and head.last >= logged:
                mended.moved[stream] = Start(logged)
            else:  # its ids begin anew
                mended.begin = mended.begin.at(stream, state.last_delivered)
            return
        if not alone:
            raise self._shared_below(stream, state, logged)
        there = still_there(self.server, stream, head, logged, logged_count)
        if logged_count is not None and there is not None and there < logged_count.read:
            self._restored(mended, stream, head, logged_count, there)
        elif logged_count is not None and there is not None and self._is_as_it_was(stream, state):
            mended.forward[stream] = Start(logged, logged_count.read)
            _log.warning(
                "stream %r: the server has lost that group %r was given what lies above %s up to the checkpoint's %s "
                "(a replica that lagged behind became the master, or an older file was loaded): it was read and "
                "committed, and the group is set forward", stream, self.member.group, state.last_delivered, logged,
            )  # fmt: skip
        elif self.losses.allowed:
            mended.moved[stream] = self._start(mended.begin, stream)
            _log.warning(
                "group %r of stream %r stands at %s, below the checkpoint's %s, and is set there: what lies between "
                "was read", self.member.group, stream, state.last_delivered, logged,
            )  # fmt: skip
        else:
            raise StreamStateError(
                f"group {self.member.group!r} of stream {stream!r} stands at {state.last_delivered}, below the "
                f"checkpoint's {logged}: it was made anew or set back. The query has read what lies between: set the "
                f"group to the checkpoint ({seek_command(stream, self.member.group, logged)}). To read it again, start "
                "with a new checkpoint; or set the group as said, and give this checkpoint that part again: "
                f"{replay_command(stream, self.member.group, state.last_delivered.next())}"
            )

    def _is_as_it_was(self, stream: str, state: GroupState) -> bool:
        """Whether the group may have stood here once. A mark is written when what it speaks of is delivered and
        acknowledged: on no replica, and in no file, it stands above the group, unless somebody has moved that."""
        mark = self.marks.get(stream)
        return mark is None or (state.known and mark.up_to <= state.last_delivered)

    def _shared_below(self, stream: str, state: GroupState, logged: StreamId) -> StreamStateError:
        group, other = self.member.group, next(one.name for one in state.others if not self.member.made(one.name))
        return StreamStateError(
            f"group {group!r} of stream {stream!r} stands at {state.last_delivered}, below the checkpoint's {logged}: "
            "the server has lost what the group was given between (a replica that lagged behind became the master, or "
            f"an older file was loaded), or the group was made anew or set back; consumer {other!r} reads from it, "
            f"too, and nobody can tell what it was given there and has not finished. Let {other!r} read up to there "
            "before this query is started: again what it has finished, and what this query has committed. Only if "
            f"{other!r} has finished all that it was given, set the group to the checkpoint instead: what lies between "
            f"is not delivered again ({seek_command(stream, group, logged)})"
        )

    def _restored(self, mended: Mended, stream: str, head: StreamState, logged: Count, there: int) -> None:
        """The server has lost its last entries, among them such as we have read; others may have come since. logged:
        what the checkpoint knows; there: how many entries the stream has had up to its position."""
        known = self.counts.forget(stream) or logged
        gone, read, more = max(known.added, logged.added) - there, str(logged.read - there), ""
        if logged.before:  # how many the last batch has read is in notes, which are gone, too
            gone, read, more = 1, "some", "or more (the server cannot tell how many) "
        at = mended.begin[stream]
        self.losses.report(
            stream,
            gone,
            f"{more}that the server had are gone, {read} of them read and committed, up to the checkpoint's "
            f"{at}: a replica that lagged behind became the master, an older file was loaded, or the stream was made "
            "anew",
            f"what was read is where the query has written it; {GO_ON}",
        )
        self.losses.at_the_end.add(stream)
        if head.last < at:
            mended.moved[stream] = Start(head.last, head.added)
            mended.begin = mended.begin.at(stream, head.last)
        else:
            mended.moved[stream] = Start(at, None if logged.before else there)

    def _above(self, mended: Mended, stream: str, state: GroupState, logged: StreamId) -> None:
        begin, alone = mended.begin, not state.is_shared(self.member)
        mark = self.marks.get(stream)
        position = state.last_delivered
        if mark is not None and begin.token and mark.up_to > logged:
            problem = (
                f"the checkpoint stands at {logged} of stream {stream!r}, and consumer {self.member.consumer!r} of "
                f"group {self.member.group!r} has committed all up to {mark.up_to}: it is an older copy of the "
                "checkpoint, its last files are gone, or another checkpoint was used with this group. Start the query "
                "with the checkpoint that was used last. To read again with this one what lies between, set the group "
                f"back ({seek_command(stream, self.member.group, logged)})"
            )
        elif not state.known and self._was_entered(begin, stream, alone):
            problem = (
                f"group {self.member.group!r} of stream {stream!r} no longer knows consumer {self.member.consumer!r}: "
                f"it was made anew, or the consumer was deleted, and what lies between the checkpoint's {logged} and "
                f"the group's {position} would be passed over; set the group back "
                f"({seek_command(stream, self.member.group, logged)})"
            )
        else:
            return
        if not self.losses.allowed:
            lenient = "the query sets it back by itself" if alone else "the query goes on without what lies between"
            raise DataLossError(f"{problem}, or set failOnDataLoss=false: {lenient}")
        _log.warning("%s%s", problem, ": it is set back" if alone else ": others read from it, and it stays")
        if alone:
            mended.moved[stream] = self._start(begin, stream)
        elif mark is not None and begin.token and mark.up_to > logged:
            # The query has read a part of it, under the newer checkpoint. Nobody can tell which.
            count = count_between(self.server, stream, logged, mark.up_to)
            self.losses.add(stream, max(1, count), "or fewer: the query has read some of them under another checkpoint")
            mended.begin = mended.begin.at(stream, mark.up_to)

    def _was_entered(self, begin: Offset, stream: str, alone: bool) -> bool:
        """Whether our consumer must be in the group by now. Checkpoints that count were written by a version that
        enters it at once."""
        entered = stream in begin.shares or stream in self.ahead or stream in begin.counts
        return entered or (stream in begin.positions and alone)
