"""The driver's side of a query, without Spark: settle what is committed, reserve the next batch, plan it.

A micro-batch (start, end] is exactly our consumer's pending entries in that range. `next(start)` is only ever asked
with a start that is in the commit log (FACTS S4), so it settles that, then reserves: first what a crash left pending
above `start`, then what it may claim from dead consumers, then new entries. A batch that follows another one of the
same run is settled in the background, beside the tasks of its successor; at an idle tick it is settled before the
answer. Where much is left, the batch after it is reserved there, too (source.ahead).

State that lives here is a convenience: all that a restart needs is in the offset and on the server. It is one file,
because what Spark asks and what a trigger does go by the same few things that are known of this run.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from spark_streams.errors import DataLossError, GroupMissingError, OffsetError, StreamStateError
from spark_streams.ids import MAX_ID, StreamId
from spark_streams.options import Options
from spark_streams.source.admission import Admission
from spark_streams.source.ahead import Ahead, Reserving, is_worth_it
from spark_streams.source.beside import Beside
from spark_streams.source.claim import Rules, delete_empty_consumers, take_over
from spark_streams.source.group import GroupState, Membership, look, stream_states
from spark_streams.source.groups import Groups
from spark_streams.source.losses import Losses
from spark_streams.source.narrow import Narrowing, is_held, next_piece
from spark_streams.source.notes import void
from spark_streams.source.offsets import Claimed, Offset
from spark_streams.source.overdue import Overdue, bury
from spark_streams.source.pending import PendingRange, pending_runs, settle
from spark_streams.source.plan import Plan, Run, per_stream, share, tasks
from spark_streams.source.replay import Replay, claimed_ranges
from spark_streams.source.settling import Settling
from spark_streams.source.start import first_positions, pin, pinned, unpin
from spark_streams.source.streams import Streams
from spark_streams.wire.connection import Connection
from spark_streams.wire.patient import PatientConnection

_LOOKS = 5  # how often a trigger may find that something has vanished under it (failOnDataLoss=false)
_log = logging.getLogger("spark_streams.source")


class MicroBatches:
    """One query's batches. Calls come from one thread. now: seconds that only go up."""

    def __init__(self, options: Options, now: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._no_ack = bool(options["noAck"])
        self._server = PatientConnection(options.address, f"group {options['group']!r}", self._begin_afresh)
        self._streams = Streams(options, now)
        self._losses = Losses(not options["failOnDataLoss"])
        self._groups = Groups(self._losses, self._streams.by_pattern, self._no_ack)
        self._beside = Beside(options.address)
        self._settling = Settling(self._beside, options, self.member, self._losses)
        self._admission = Admission(options, now)
        self._ahead: Ahead | None = None  # what is being reserved beside the tasks, for the batch after theirs
        self._claimed: dict[str, int] = {}  # entries taken over by this run, per stream
        self._turn = 0  # triggers so far
        self._fresh = True  # nothing is known of what an earlier run left behind
        self._pinned = self._no_ack  # some first positions are kept on the server
        self._unpinned: set[str] = set()  # those of these streams are kept no more
        self._reserved: tuple[Offset, list[Run]] | None = None  # the last batch that was made: its end, what it holds
        self._run = secrets.token_hex(6)
        self._tried = self._cut = ""  # tokens: the batch whose attempt was counted, the one that was narrowed

    @property
    def member(self) -> Membership:
        """Who reads."""
        return self._streams.member

    # -- what Spark asks -----------------------------------------------------------------------------------------

    def first(self) -> Offset:
        """Where a query without a checkpoint starts; the group pins it on the server, so it may be asked again (S2)."""
        return self._server.run(self._first)

    def until_now(self) -> None:
        """The run ends at what the streams hold now (AvailableNow)."""
        self._server.run(self._until_now)

    def next(self, begin: Offset, most: int | None) -> Offset | None:
        """Settle up to `begin`, reserve the next batch of at most `most` entries, and return its end; None where there
        is nothing."""
        self._check_owner(begin)
        for _ in range(_LOOKS - 1):
            try:
                return self._server.run(lambda server: self._next(server, begin, most))
            except (GroupMissingError, DataLossError):
                # It vanished within this trigger: another look says what is lost with it.
                if not self._losses.allowed:
                    raise
                self._begin_afresh()
        return self._server.run(lambda server: self._next(server, begin, most))

    def plan(self, begin: Offset, end: Offset) -> Plan:
        """The batch as tasks. After a restart the pending list tells what the batch held (S5)."""
        self._check_owner(begin)
        self._check_owner(end)
        if begin == end:
            return Plan([], narrowed=False)
        is_new = self._reserved is not None and self._reserved[0] == end
        if self._tried != end.token and not (is_new and self._options["maxDeliveries"] is None):
            # Once a run: Spark plans a batch again for each action on it.
            self._server.run(lambda server: self._try(server, begin, end))
        if self._reserved is not None and self._reserved[0] == end:
            runs = self._reserved[1]
        elif self._options["delivery"] == "at-most-once":
            _log.warning("a batch that a crash interrupted is given up (delivery=at-most-once): %s", end.to_json())
            runs = []
        else:
            runs = self._server.run(lambda server: self._again(server, begin, end))
            self._reserved = (end, runs)
        size = self._admission.size([run.count for run in runs])
        return Plan(tasks(runs, size, self._options["ordered"]), self._cut == end.token or is_held(end.claimed))

    def commit(self, end: Offset) -> None:
        """Settle up to `end`, unless that is done or under way. The same code as in `next` (S3)."""
        self._check_owner(end)
        if self._settling.is_done(end):
            return
        try:
            self._server.run(lambda server: self._commit(server, end))
        except (GroupMissingError, DataLossError):
            # It vanished since: the next look says what is lost with it, and settles the rest.
            if not self._losses.allowed:
                raise
            self._begin_afresh()

    def reported(self) -> dict[str, object]:
        """Where the streams end, and what this run has lost, claimed and given up so far."""
        heads = {stream: state.last for stream, state in self._groups.heads.items()}
        told = {"lost": self._losses.counts, "claimed": self._claimed, "dead": self._settling.letters}
        return {**self._offset(heads).to_json(), **{name: dict(counts) for name, counts in told.items() if counts}}

    def stop(self) -> None:
        """Give the lease back and close the connections."""
        self._beside.close()
        self._streams.release()
        self._server.close()

    def _first(self, server: Connection) -> Offset:
        self._streams.join(server)
        positions = first_positions(server, self.member)
        # Without a pending list the group's position moves on before the checkpoint knows a first one: that of a run
        # which came to no checkpoint holds, whatever this one has.
        kept = pin(server, self.member, positions) if self._no_ack else pinned(server, self.member, list(positions))
        self._pinned = bool(kept)
        return replace(self._offset({**positions, **kept}), no_ack=self._pinned)

    def _until_now(self, server: Connection) -> None:
        self._streams.find(server)
        self._admission.until = stream_states(server, self.member.streams)

    def _begin_afresh(self) -> None:
        """Take nothing for known: the server is asked, as after a restart."""
        self._fresh = True
        self._settling.forget()

    # -- a trigger -----------------------------------------------------------------------------------------------

    def _next(self, server: Connection, begin: Offset, most: int | None) -> Offset | None:
        ahead = self._wait_for_beside(server)
        streams = self._streams.of(server, begin, look=self._admission.until is None, at_once=self._fresh)
        self._turn += 1
        self._pinned |= begin.no_ack
        if self._pinned and begin.token:
            self._unpin(server, begin)
        logged = begin
        ends = {} if ahead is None else ahead.ends()
        begin, states = self._groups.reconciled(server, self.member, logged, streams, ends, self._fresh)
        if begin is not logged:
            self._settling.take_notes(server, logged)  # of streams that are gone, too
        # What the batch before this one left pending is known, so settling it can wait until tasks run.
        unsettled = self._unsettled(begin)
        if ahead is not None and not ahead.is_untouched(states, unsettled):
            # Somebody else has been there: the server is asked what is ours, as after a crash.
            ahead = None
            self._begin_afresh()
            if self._no_ack:
                states = self._groups.alone(server, self.member, begin, states, {}, afresh=True)
        if self._no_ack:
            # Of an earlier run with a pending list; the group stands below it by now.
            settle(server, self.member, [PendingRange(stream, MAX_ID) for stream in states if states[stream].ours])
        expected = Counter(unsettled) if ahead is None else Counter(unsettled) + ahead.pending()
        if self._fresh or any(state.ours > expected[stream] for stream, state in states.items()):
            self._settling.now(server, begin)
            ahead, unsettled = None, {}
            states = self._groups.now(server, self.member, list(states))
            if self._fresh and not self._no_ack:
                delete_empty_consumers(server, self.member, states)
        token = secrets.token_hex(6)
        claimed = next_piece(self.member, states, begin)
        runs: list[Run] = []
        new: list[Run] | None = None
        if not claimed:
            claimed = self._claim(server, begin, states, token, most)
            room = None if most is None else most - sum(one.count for some in claimed.values() for one in some)
            runs = ahead.runs if ahead is not None else self._leftovers(server, begin, states, unsettled, room)
            if ahead is not None or not runs:
                room = None if room is None else room - sum(run.count for run in runs)
                new = self._new_entries(server, states, room, hurry=bool(claimed or runs))
                runs = runs + new
        self._fresh = False
        if not runs and not claimed:
            if not self._settling.is_done(begin):
                self._settling.now(server, begin)
            return None
        self._admission.made()
        self._losses.took(new or [])
        end = replace(begin.after(runs, token, claimed), no_ack=self._no_ack)
        if claimed:
            size = self._admission.size([one.count for some in claimed.values() for one in some])
            runs += pending_runs(server, self.member, claimed_ranges(claimed), size)
        if self._options["delivery"] == "at-most-once":
            runs = self._settle_at_once(server, end, runs)
        self._reserved = (end, runs)
        if not self._settling.is_done(begin):
            self._settling.beside(server, begin)
        if new is not None and not claimed:
            self._reserve_ahead(states, new, most)
        return end

    def _unpin(self, server: Connection, begin: Offset) -> None:
        """Positions that the checkpoint has are of no more use on the server."""
        unpin(server, self.member, [stream for stream in begin.positions if stream not in self._unpinned])
        self._unpinned = set(begin.positions)

    def _wait_for_beside(self, server: Connection) -> Ahead | None:
        """Until what was begun beside the tasks is finished; what it has reserved for this batch, if it is of use."""
        ahead, self._ahead = self._ahead, None
        try:
            self._beside.wait()
        except StreamStateError:
            # A stream or group is gone: the look that follows says which, and whether that is allowed.
            self._begin_afresh()
            return None
        return None if ahead is None or not ahead.runs or self._fresh else ahead

    def _reserve_ahead(self, states: Mapping[str, GroupState], new: Sequence[Run], most: int | None) -> None:
        """Begin to reserve what follows a batch, where it is much and goes to nobody else. new: what was reserved since
        the groups stood like this."""
        if self._options["delivery"] == "at-most-once" or self._options["claimIdle"] is not None:
            return
        if any(state.others for state in states.values()):
            return
        left = Counter(self._admission.backlog(self._groups.heads, states))
        left.subtract(per_stream(new))
        if is_worth_it(self._admission, left, most):
            self._ahead = Ahead(self._reserving, list(states), most, self._turn + 1)
            self._beside.submit(self._ahead.work)

    def _unsettled(self, begin: Offset) -> dict[str, int]:
        """Entries of the batch up to `begin` that are pending still, as far as that is known."""
        if self._fresh or self._at_once or self._settling.is_done(begin):
            return {}
        return {stream: one.count for stream, one in begin.shares.items()}

    def _commit(self, server: Connection, end: Offset) -> None:
        if self._wait_for_beside(server) is not None:
            self._begin_afresh()
        self._settling.now(server, end)

    @property
    def _reserving(self) -> Reserving:
        return Reserving(self.member, self._admission, self._no_ack)

    @property
    def _at_once(self) -> bool:
        """Whether nothing of a batch stays pending once it is made."""
        return self._no_ack or self._options["delivery"] == "at-most-once"

    def _claim(
        self, server: Connection, begin: Offset, states: Mapping[str, GroupState], token: str, most: int | None
    ) -> dict[str, list[Claimed]]:
        rules = Rules(self._options["claimIdle"], self._options["maxDeliveries"], self._bury, self._lose)
        claimed = take_over(server, self.member, states, begin, token, rules, most)
        for stream, some in claimed.items():
            self._claimed[stream] = self._claimed.get(stream, 0) + sum(one.count for one in some)
        return claimed

    def _bury(self, overdue: Overdue) -> None:
        """Entries that were delivered too often become dead letters."""
        to = self._options["deadLetterStream"]
        posted, gone = bury(self._server.get(), self.member.group, overdue, to)
        self._settling.count_letters(overdue.stream, posted)
        self._losses.add(overdue.stream, gone, "deleted while they were pending")

    def _lose(self, stream: str, count: int) -> None:
        """Entries of dead consumers were gone before we claimed them."""
        if count and not self._losses.allowed:
            raise DataLossError(
                f"stream {stream!r}: {count} entries that other consumers of group {self.member.group!r} had left "
                "pending were trimmed or deleted before they were claimed; they are pending no more, and the next run "
                "goes on without them"
            )
        self._losses.add(stream, count, "trimmed or deleted before they were claimed")

    def _leftovers(
        self,
        server: Connection,
        begin: Offset,
        states: Mapping[str, GroupState],
        unsettled: Mapping[str, int],
        most: int | None,
    ) -> list[Run]:
        """Entries that a crashed run reserved and did not log: pending for us above what is settled."""
        backlog = {s: state.ours for s, state in states.items() if state.ours > unsettled.get(s, 0)}
        if not backlog:
            return []
        allowed = backlog if most is None else share(most, backlog, self._turn)
        asked = [PendingRange(s, MAX_ID, begin[s], most=entries) for s, entries in allowed.items()]
        return pending_runs(server, self.member, asked, self._admission.size(list(allowed.values())))

    def _new_entries(
        self, server: Connection, states: Mapping[str, GroupState], most: int | None, hurry: bool
    ) -> list[Run]:
        """hurry: there is a batch anyway, so what is new need not wait for more to come."""
        backlog = self._admission.backlog(self._groups.heads, states)
        if not backlog or most == 0 or (not hurry and self._admission.should_wait(sum(backlog.values()))):
            return []
        return self._reserving.new_entries(server, self._groups.heads, states, backlog, most, self._turn)

    def _settle_at_once(self, server: Connection, end: Offset, runs: Sequence[Run]) -> list[Run]:
        """at-most-once: acknowledge the batch before it is read. A range that others read from too takes the ids of our
        entries along, since the pending list will not have them."""
        kept: list[Run] = []
        for run in runs:
            ours = PendingRange(run.stream, run.last, run.after, run.consumer)
            kept += [run] if run.owned else pending_runs(server, self.member, [ours], run.count, keep_ids=True)
        shares = [PendingRange(stream, end[stream]) for stream in end.shares]
        settle(server, self.member, [*shares, *claimed_ranges(end.claimed)])
        return kept

    # -- a batch again -------------------------------------------------------------------------------------------

    def _again(self, server: Connection, begin: Offset, end: Offset) -> list[Run]:
        self._streams.hold(server, end.streams)
        void(server, self.member, end.streams)
        cut = self._cut == end.token
        listed = not (self._no_ack or end.no_ack)
        return Replay(server, self.member, self._losses, listed, self._admission.size, cut).runs(begin, end)

    def _try(self, server: Connection, begin: Offset, end: Offset) -> None:
        """Count this run's attempt at a batch; where too many have died of it, it is cut."""
        self._streams.hold(server, end.streams)
        most = self._options["maxDeliveries"]
        try:
            cut = Narrowing(server, self.member, self._run, most, self._bury, self._losses).attempt(begin, end)
        except (GroupMissingError, DataLossError):
            if not self._losses.allowed:
                raise
            _, states = look(server, self.member, end.streams)
            gone = [stream for stream, state in states.items() if state is None]
            cut = Narrowing(server, self.member, self._run, most, self._bury, self._losses, gone).attempt(begin, end)
        if cut:
            self._cut = end.token
        self._tried = end.token

    def _offset(self, positions: Mapping[str, StreamId]) -> Offset:
        return Offset(self.member.group, self.member.consumer, positions)

    def _check_owner(self, offset: Offset) -> None:
        """Raises OffsetError where an offset belongs to another group or consumer: their pending entries are not ours
        to read or to settle."""
        if (offset.group, offset.consumer) != (self.member.group, self.member.consumer):
            raise OffsetError(
                f"the checkpoint belongs to consumer {offset.consumer!r} of group {offset.group!r}, and the query is "
                f"consumer {self.member.consumer!r} of group {self.member.group!r}: set these options back, "
                "or start with a new checkpoint"
            )
