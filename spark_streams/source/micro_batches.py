"""The driver's side of a query, without Spark: settle what is committed, reserve the next batch, plan it.

A micro-batch (start, end] is exactly our consumer's pending entries in that range. `next(start)` is only ever asked
with a start that is in the commit log (FACTS S4), so it settles that, then reserves: first what a crash left pending
above `start`, then what it may claim from dead consumers, then new entries. A batch that follows another one of the
same run is settled in the background, beside the tasks of its successor; at an idle tick it is settled before the
answer. Where much is left, the batch after it is reserved there, too (source.ahead).

State that lives here is a convenience: all that a restart needs is in the offset and on the server.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from spark_streams.errors import DataLossError, GroupMissingError, OffsetError, RStreamError, StreamStateError
from spark_streams.ids import MAX_ID, MIN_ID, StreamId
from spark_streams.options import Options
from spark_streams.source.admission import Admission
from spark_streams.source.ahead import Ahead, Reserving, is_worth_it
from spark_streams.source.beside import Beside
from spark_streams.source.claim import Rules, delete_empty_consumers, take_over
from spark_streams.source.group import GroupState, Membership, StreamState, look, missing, stream_states
from spark_streams.source.lease import Lease
from spark_streams.source.losses import Losses, check_trimmed, reconcile
from spark_streams.source.narrow import Narrowing, is_held, next_piece
from spark_streams.source.offsets import Claimed, Offset
from spark_streams.source.overdue import Overdue, bury
from spark_streams.source.pending import PendingRange, pending_runs, settle
from spark_streams.source.plan import Plan, Run, share, tasks
from spark_streams.source.replay import Replay, claimed_ranges
from spark_streams.source.reserve import require_alone
from spark_streams.source.settling import Settling
from spark_streams.source.start import (
    create_groups,
    create_groups_of_pattern,
    first_positions,
    matching_streams,
    pin,
    set_groups_to,
    unpin,
)
from spark_streams.wire.connection import Connection
from spark_streams.wire.retry import Backoff, is_passing

_LOOK_FOR_STREAMS = 2.0  # seconds between two looks for streams that match the pattern
_LOOKS = 5  # how often a trigger may find that something has vanished under it (failOnDataLoss=false)
_log = logging.getLogger("spark_streams.source")

T = TypeVar("T")


class MicroBatches:
    """One query's batches. Calls come from one thread. now: seconds that only go up."""

    def __init__(self, options: Options, now: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._now = now
        streams: tuple[str, ...] = options["streams"] or ()
        self._member = Membership(streams, options["group"], options["consumer"])
        self._lease = Lease(options.address, options["group"], options["consumer"])
        self._losses = Losses(not options["failOnDataLoss"])
        self._beside = Beside(options.address)
        self._settling = self._make_settling()
        self._admission = Admission(options, now)
        self._ahead: Ahead | None = None  # what is being reserved beside the tasks, for the batch after theirs
        self._claimed: dict[str, int] = {}  # entries taken over by this run, per stream
        self._server: Connection | None = None
        self._was_connected = False
        self._found = 0.0  # when streams were last looked for
        self._turn = 0  # triggers so far
        self._fresh = True  # nothing is known of what an earlier run left behind
        self._pinned = bool(options["noAck"])  # first positions are kept on the server
        self._reserved: tuple[Offset, list[Run]] | None = None  # the last batch that was made: its end, what it holds
        self._tried = self._cut = ""  # tokens: the batch whose attempt was counted, the one that was narrowed
        self._heads: Mapping[str, StreamState] = {}

    def _make_settling(self) -> Settling:
        options = self._options
        noted = self._losses.allowed or options["mode"] == "DEADLETTER"
        to = options["deadLetterStream"]
        return Settling(self._beside, self._member, self._losses, not options["noAck"], noted, to)

    @property
    def member(self) -> Membership:
        """Who reads."""
        return self._member

    # -- what Spark asks -----------------------------------------------------------------------------------------

    def first(self) -> Offset:
        """Where a query without a checkpoint starts; the group pins it on the server, so it may be asked again (S2)."""
        return self._patiently(self._first)

    def until_now(self) -> None:
        """The run ends at what the streams hold now (AvailableNow)."""
        self._patiently(self._until_now)

    def next(self, begin: Offset, most: int | None) -> Offset | None:
        """Settle up to `begin`, reserve the next batch of at most `most` entries, and return its end; None where there
        is nothing."""
        self._check_owner(begin)
        for left in reversed(range(_LOOKS)):
            try:
                return self._patiently(lambda: self._next(begin, most))
            except (GroupMissingError, DataLossError):
                # It vanished within this trigger: another look says what is lost with it.
                if not self._losses.allowed or not left:
                    raise
                self._begin_afresh()
        raise AssertionError("unreachable")

    def plan(self, begin: Offset, end: Offset) -> Plan:
        """The batch as tasks. After a restart the pending list tells what the batch held (S5)."""
        self._check_owner(begin)
        self._check_owner(end)
        if begin == end:
            return Plan([], narrowed=False)
        if self._options["maxDeliveries"] is not None and self._tried != end.token:
            # Once a run: Spark plans a batch again for each action on it.
            self._patiently(lambda: self._try(begin, end))
        if self._reserved is not None and self._reserved[0] == end:
            runs = self._reserved[1]
        elif self._options["delivery"] == "at-most-once":
            _log.warning("a batch that a crash interrupted is given up (delivery=at-most-once): %s", end.to_json())
            runs = []
        else:
            runs = self._patiently(lambda: self._again(begin, end))
        size = self._admission.size([run.count for run in runs])
        return Plan(tasks(runs, size, self._options["ordered"]), self._cut == end.token or is_held(end.claimed))

    def commit(self, end: Offset) -> None:
        """Settle up to `end`, unless that is done or under way. The same code as in `next` (S3)."""
        self._check_owner(end)
        if self._settling.is_done(end):
            return
        try:
            self._patiently(lambda: self._commit(end))
        except (GroupMissingError, DataLossError):
            # It vanished since: the next look says what is lost with it, and settles the rest.
            if not self._losses.allowed:
                raise
            self._begin_afresh()

    def reported(self) -> dict[str, object]:
        """Where the streams end, and what this run has lost, claimed and given up so far."""
        heads = {stream: state.last for stream, state in self._heads.items()}
        told = {"lost": self._losses.counts, "claimed": self._claimed, "dead": self._settling.letters}
        return {**self._offset(heads).to_json(), **{name: dict(counts) for name, counts in told.items() if counts}}

    def stop(self) -> None:
        """Give the lease back and close the connections."""
        self._beside.close()
        self._lease.release()
        self._disconnect()

    # -- the server ----------------------------------------------------------------------------------------------

    def _connection(self) -> Connection:
        if self._server is None:
            self._server = Connection(self._options.address)
            self._was_connected = True
        return self._server

    def _disconnect(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def _patiently(self, step: Callable[[], T]) -> T:
        """Run a step, again where the server was lost or could not answer for the moment: every step may be repeated.

        Raises RetriesExhaustedError after wire.retry.LIMIT, ServerUnreachableError at once where nothing ever answered.
        """
        backoff = Backoff()
        while True:
            try:
                return step()
            except RStreamError as error:
                if not self._was_connected or not is_passing(error):
                    raise
                self._disconnect()
                self._begin_afresh()
                _log.warning("%s; trying again", error.message)
                backoff.wait(f"group {self._member.group!r} at {self._options.address}", error.message)

    def _begin_afresh(self) -> None:
        """Take nothing for known: the server is asked, as after a restart."""
        self._fresh = True
        self._settling.forget()

    # -- beginning -----------------------------------------------------------------------------------------------

    def _first(self) -> Offset:
        server = self._connection()
        if self._options["streamsPattern"] is not None:
            self._find_streams()
        else:
            self._lease.hold(server, self._member.streams)
            create_groups(server, self._member, self._member.streams, self._options["startingOffsets"])
        positions = first_positions(server, self._member)
        # Without a pending list the group's position moves on before the checkpoint knows a first one.
        return self._offset(pin(server, self._member, positions) if self._options["noAck"] else positions)

    def _until_now(self) -> None:
        if self._options["streamsPattern"] is not None:
            self._find_streams()
        self._admission.until = stream_states(self._connection(), self._member.streams)

    def _find_streams(self) -> None:
        """Look for the pattern's streams and join those that are new."""
        letters = self._options["deadLetterStream"]
        server = self._connection()
        found = matching_streams(server, self._options["streamsPattern"], [letters] if letters else [])
        self._lease.hold(server, found)
        have = create_groups_of_pattern(server, self._member, found, self._options["startingOffsets"])
        self._member = replace(self._member, streams=tuple(have))
        self._found = self._now()

    def _streams_of(self, begin: Offset) -> tuple[str, ...]:
        """The streams of this trigger: those of the options, or of the pattern and the checkpoint."""
        if self._options["streamsPattern"] is None:
            # Streams that the query was given since; the others' groups must be there, or something is lost.
            new = [stream for stream in self._member.streams if stream not in begin.positions]
            create_groups(self._connection(), self._member, new, self._options["startingOffsets"])
            return self._member.streams
        if self._admission.until is None and (self._fresh or self._now() - self._found >= _LOOK_FOR_STREAMS):
            self._find_streams()
        return tuple(sorted({*self._member.streams, *begin.positions}))

    # -- a trigger -----------------------------------------------------------------------------------------------

    def _next(self, begin: Offset, most: int | None) -> Offset | None:
        server = self._connection()
        ahead = self._wait_for_beside(server)
        streams = self._streams_of(begin)
        self._lease.hold(server, streams)
        self._turn += 1
        if self._pinned and begin.token:
            unpin(server, self._member, streams)
            self._pinned = False
        begin, states = self._look(begin, streams)
        # What the batch before this one left pending is known, so settling it can wait until tasks run.
        unsettled = self._unsettled(begin)
        if ahead is not None and not ahead.is_untouched(states, unsettled):
            # Somebody else has been there: the server is asked what is ours, as after a crash.
            ahead = None
            self._begin_afresh()
            if self._options["noAck"]:
                states = self._alone(begin, states)
        expected = Counter(unsettled) if ahead is None else Counter(unsettled) + ahead.pending()
        if self._fresh or any(state.ours > expected[stream] for stream, state in states.items()):
            self._settling.now(server, begin)
            ahead, unsettled = None, {}
            states = self._groups(list(states))
            if self._fresh and not self._options["noAck"]:
                delete_empty_consumers(server, self._member, states)
        token = secrets.token_hex(6)
        claimed = next_piece(self._member, states, begin)
        runs: list[Run] = []
        new: list[Run] | None = None
        if not claimed:
            claimed = self._claim(begin, states, token, most)
            room = None if most is None else most - sum(one.count for some in claimed.values() for one in some)
            runs = ahead.runs if ahead is not None else self._leftovers(begin, states, unsettled, room)
            if ahead is not None or not runs:
                room = None if room is None else room - sum(run.count for run in runs)
                new = self._new_entries(states, room, hurry=bool(claimed or runs))
                runs = runs + new
        self._fresh = False
        if not runs and not claimed:
            if not self._settling.is_done(begin):
                self._settling.now(server, begin)
            return None
        self._admission.made()
        self._losses.took(runs)
        end = begin.after(runs, token, claimed)
        if claimed:
            size = self._admission.size([one.count for some in claimed.values() for one in some])
            runs += pending_runs(server, self._member, claimed_ranges(claimed), size)
        if self._options["delivery"] == "at-most-once":
            runs = self._settle_at_once(end, runs)
        self._reserved = (end, runs)
        if not self._settling.is_done(begin):
            self._settling.beside(server, begin)
        if new is not None and not claimed:
            self._reserve_ahead(states, new, most)
        return end

    def _wait_for_beside(self, server: Connection) -> Ahead | None:
        """Until what was begun beside the tasks is finished; what it has reserved for this batch, if it is of use."""
        ahead, self._ahead = self._ahead, None
        try:
            self._beside.wait()
        except StreamStateError:
            # A stream or group is gone: the look that follows says which, and whether that is allowed.
            self._begin_afresh()
            return None
        self._settling.finished(server)
        return None if ahead is None or not ahead.runs or self._fresh else ahead

    def _reserve_ahead(self, states: Mapping[str, GroupState], new: Sequence[Run], most: int | None) -> None:
        """Begin to reserve what follows a batch, where it is much and goes to nobody else. new: what was reserved since
        the groups stood like this."""
        if self._options["delivery"] == "at-most-once" or self._options["claimIdle"] is not None:
            return
        if any(state.others for state in states.values()):
            return
        left = Counter(self._admission.backlog(self._heads, states))
        for run in new:
            left[run.stream] -= run.count
        if is_worth_it(self._admission, left, most):
            self._ahead = Ahead(self._reserving, list(states), most, self._turn + 1)
            self._beside.submit(self._ahead.work)

    def _unsettled(self, begin: Offset) -> dict[str, int]:
        """Entries of the batch up to `begin` that are pending still, as far as that is known."""
        if self._fresh or self._at_once or self._settling.is_done(begin):
            return {}
        return {stream: one.count for stream, one in begin.shares.items()}

    def _commit(self, end: Offset) -> None:
        server = self._connection()
        if self._wait_for_beside(server) is not None:
            self._begin_afresh()
        self._settling.now(server, end)

    @property
    def _reserving(self) -> Reserving:
        return Reserving(self._member, self._admission, self._options["noAck"])

    @property
    def _at_once(self) -> bool:
        """Whether nothing of a batch stays pending once it is made."""
        return bool(self._options["noAck"]) or self._options["delivery"] == "at-most-once"

    def _look(self, begin: Offset, streams: Sequence[str]) -> tuple[Offset, dict[str, GroupState]]:
        """The streams' groups, held against the checkpoint; without the pattern's streams that are gone."""
        server = self._connection()
        heads, found = look(server, self._member, streams)
        if self._options["streamsPattern"] is not None:
            gone = [stream for stream in streams if not heads[stream].exists]
            for stream in gone:
                if not self._losses.allowed and begin[stream] > MIN_ID:
                    raise missing(server, self._member, stream, stream_too=True)
                self._losses.vanished(stream)
            if gone:
                self._settling.take_notes(server, begin)  # of these streams, too
            heads = {stream: head for stream, head in heads.items() if stream not in gone}
            found = {stream: state for stream, state in found.items() if stream not in gone}
            begin = begin.without(gone)
        self._heads = heads
        if self._options["noAck"]:
            found.update(self._alone(begin, found))
        if reconcile(server, self._member, begin, heads, found, self._losses):
            states = self._groups(list(heads))
        else:
            states = {stream: state for stream, state in found.items() if state is not None}
        check_trimmed(self._member, self._heads, states, self._losses)
        self._losses.remember(self._heads, states)
        return begin, states

    def _groups(self, streams: Sequence[str]) -> dict[str, GroupState]:
        """The groups as they are now. Raises GroupMissingError, DataLossError where one is gone."""
        server = self._connection()
        self._heads, found = look(server, self._member, streams)
        states = {}
        for stream, state in found.items():
            if state is None:
                raise missing(server, self._member, stream, not self._heads[stream].exists)
            states[stream] = state
        return states

    def _alone(self, begin: Offset, states: Mapping[str, GroupState | None]) -> dict[str, GroupState]:
        """noAck: nobody else may read from the group, and it stands where the checkpoint stands; the groups then."""
        back = {}
        found = {stream: state for stream, state in states.items() if state is not None}
        for stream, state in found.items():
            require_alone(self._member, stream, state)
            # Without a pending list the checkpoint is the only truth, if this is still the stream that it speaks of.
            is_known = stream in begin.positions and begin[stream] <= self._heads[stream].last
            if self._fresh and is_known and state.last_delivered != begin[stream]:
                back[stream] = begin[stream]
                found[stream] = replace(state, last_delivered=begin[stream], entries_read=None, lag=None)
        set_groups_to(self._connection(), self._member, back)
        return found

    def _claim(
        self, begin: Offset, states: Mapping[str, GroupState], token: str, most: int | None
    ) -> dict[str, list[Claimed]]:
        rules = Rules(self._options["claimIdle"], self._options["maxDeliveries"], self._bury)
        if self._at_once:
            return {}
        claimed = take_over(self._connection(), self._member, states, begin, token, rules, most)
        for stream, some in claimed.items():
            self._claimed[stream] = self._claimed.get(stream, 0) + sum(one.count for one in some)
        return claimed

    def _bury(self, overdue: Overdue) -> None:
        """Entries that were delivered too often become dead letters."""
        to = self._options["deadLetterStream"]
        posted, gone = bury(self._connection(), self._member.group, overdue, to)
        self._settling.count_letters(overdue.stream, posted)
        self._losses.add(overdue.stream, gone, "deleted while they were pending")

    def _leftovers(
        self, begin: Offset, states: Mapping[str, GroupState], unsettled: Mapping[str, int], most: int | None
    ) -> list[Run]:
        """Entries that a crashed run reserved and did not log: pending for us above what is settled."""
        backlog = {s: state.ours for s, state in states.items() if state.ours > unsettled.get(s, 0)}
        if not backlog:
            return []
        allowed = backlog if most is None else share(most, backlog, self._turn)
        asked = [PendingRange(s, MAX_ID, begin[s], most=entries) for s, entries in allowed.items()]
        return pending_runs(self._connection(), self._member, asked, self._admission.size(list(allowed.values())))

    def _new_entries(self, states: Mapping[str, GroupState], most: int | None, hurry: bool) -> list[Run]:
        """hurry: there is a batch anyway, so what is new need not wait for more to come."""
        backlog = self._admission.backlog(self._heads, states)
        if not backlog or most == 0 or (not hurry and self._admission.should_wait(sum(backlog.values()))):
            return []
        return self._reserving.new_entries(self._connection(), self._heads, states, backlog, most, self._turn)

    def _settle_at_once(self, end: Offset, runs: Sequence[Run]) -> list[Run]:
        """at-most-once: acknowledge the batch before it is read. A range that others read from too takes the ids of our
        entries along, since the pending list will not have them."""
        server = self._connection()
        kept: list[Run] = []
        for run in runs:
            ours = PendingRange(run.stream, run.last, run.after)
            kept += [run] if run.owned else pending_runs(server, self._member, [ours], run.count, keep_ids=True)
        settle(server, self._member, [PendingRange(stream, end[stream]) for stream in end.shares])
        return kept

    # -- a batch again -------------------------------------------------------------------------------------------

    def _again(self, begin: Offset, end: Offset) -> list[Run]:
        server = self._connection()
        self._lease.hold(server, list(end.positions))
        listed, cut = not self._options["noAck"], self._cut == end.token
        return Replay(server, self._member, self._losses, listed, self._admission.size, cut).runs(begin, end)

    def _try(self, begin: Offset, end: Offset) -> None:
        """Count this run's attempt at a batch; where too many have died of it, it is cut."""
        server = self._connection()
        self._lease.hold(server, list(end.positions))
        most = self._options["maxDeliveries"]
        try:
            cut = Narrowing(server, self._member, most, self._bury).attempt(begin, end)
        except (GroupMissingError, DataLossError):
            if not self._losses.allowed:
                raise
            _, states = look(server, self._member, list(end.positions))
            gone = [stream for stream, state in states.items() if state is None]
            cut = Narrowing(server, self._member, most, self._bury, gone).attempt(begin, end)
        if cut:
            self._cut = end.token
        self._tried = end.token

    def _offset(self, positions: Mapping[str, StreamId]) -> Offset:
        return Offset(self._member.group, self._member.consumer, positions)

    def _check_owner(self, offset: Offset) -> None:
        """Raises OffsetError where an offset belongs to another group or consumer: their pending entries are not ours
        to read or to settle."""
        if (offset.group, offset.consumer) != (self._member.group, self._member.consumer):
            raise OffsetError(
                f"the checkpoint belongs to consumer {offset.consumer!r} of group {offset.group!r}, and the query is "
                f"consumer {self._member.consumer!r} of group {self._member.group!r}: set these options back, "
                "or start with a new checkpoint"
            )
