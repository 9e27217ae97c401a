"""The driver's side of a query, without Spark: settle what is committed, reserve the next batch, plan it.

A micro-batch (start, end] is exactly our consumer's pending entries in that range. `next(start)` is only ever asked
with a start that is in the commit log (FACTS S4), so it settles that, then reserves: first what a crash left pending
above `start`, then what it may claim from dead consumers, then new entries. A batch that follows another one of the
same run is settled in the background, beside the tasks of its successor; at an idle tick it is settled before the
answer. Where much is left, the batch after it is reserved there, too (source.microbatch.prefetch).

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
from typing import TypeVar

from spark_streams.errors import DataLossError, GroupMissingError, OffsetError, StreamStateError
from spark_streams.ids import MAX_ID, MIN_ID, StreamId
from spark_streams.options import Options
from spark_streams.source.entry_range import EntryRange, per_stream
from spark_streams.source.group.data_loss import DataLoss, shared
from spark_streams.source.group.eviction_policy import refuse_where_keys_are_needed
from spark_streams.source.group.group_state import GroupState, fetch_state
from spark_streams.source.group.initial_position import (
    InitialPositionKeys,
    first_positions,
    forget_initial_positions,
    save_initial_positions,
    saved_initial_positions,
)
from spark_streams.source.group.reconcile import GroupReconciler
from spark_streams.source.group.subscription import Subscription
from spark_streams.source.membership import Membership
from spark_streams.source.microbatch.acknowledge import Settling
from spark_streams.source.microbatch.admission import Admission
from spark_streams.source.microbatch.background import BackgroundWorker
from spark_streams.source.microbatch.interleave import in_order
from spark_streams.source.microbatch.prefetch import Prefetch, Reserving, is_worth_it
from spark_streams.source.microbatch.replay import Replay
from spark_streams.source.offset import Claimed, Offset
from spark_streams.source.partitioning import Plan, share, tasks
from spark_streams.source.pending_list import PendingRange, claimed_ranges, pending_runs, settle
from spark_streams.source.recovery.claim import Rules, delete_empty_consumers, take_over
from spark_streams.source.recovery.dead_entries import Overdue, bury
from spark_streams.source.recovery.handed_entries import take_handed
from spark_streams.source.recovery.poison_batch import PoisonBatch
from spark_streams.source.recovery.taken_entries import GO_ON, Taken, missing_from
from spark_streams.source.task_notes import void
from spark_streams.wire.connection import Connection
from spark_streams.wire.session import Session
from spark_streams.wire.xinfo import stream_states

_LOOKS = 5  # how often a trigger may find that something has vanished under it (failOnDataLoss=false)
_log = logging.getLogger("spark_streams.source")

T = TypeVar("T")


class MicroBatchStream:
    """One query's batches. Calls come from one thread. now: seconds that only go up."""

    def __init__(self, options: Options, now: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._no_ack = bool(options["noAck"])
        self._server = Session(
            options.address,
            f"group {options['group']!r}",
            lost=self._begin_afresh,
            greet=lambda server: refuse_where_keys_are_needed(server, options),
        )
        self._streams = Subscription(options, now)
        self._losses = DataLoss(not options["failOnDataLoss"])
        self._groups = GroupReconciler(self._losses, self._streams, self._no_ack)
        self._beside = BackgroundWorker(options.address)
        self._settling = Settling(self._beside, options, self.member, self._losses)
        self._admission = Admission(options, now)
        self._ahead: Prefetch | None = None  # what is being reserved beside the tasks, for the batch after theirs
        self._taken = Taken()
        self._claimed: dict[str, int] = {}  # entries taken over by this run, per stream
        self._turn = 0  # triggers so far
        self._fresh = True  # nothing is known of what an earlier run left behind
        self._unpinned: set[str] = set()  # streams whose positions are kept no more
        self._pinned_at: str | None = None  # the token of the checkpoint whose positions are kept on the server
        self._reserved: tuple[Offset, list[EntryRange]] | None = (
            None  # the last batch that was made: its end, what it holds
        )
        self._narrowing = PoisonBatch(options["maxDeliveries"], self._bury, self._losses)
        self._left: dict[str, StreamId] = {}  # where the last trigger left the groups
        self._dropped: set[str] = set()  # streams of the checkpoint that the options name no more, and that are gone

    @property
    def member(self) -> Membership:
        """Who reads."""
        return self._streams.member

    # -- what Spark asks -----------------------------------------------------------------------------------------

    def trust_address(self) -> None:
        """The server has answered before: where it is away now, it is waited for."""
        self._server.trust()

    def first(self) -> Offset:
        """Where a query without a checkpoint starts; the group pins it on the server, so it may be asked again (S2)."""
        return self._again_where_something_vanishes(self._first)

    def until_now(self) -> None:
        """The run ends at what the streams hold now (AvailableNow)."""
        self._server.run(self._until_now)

    def next(self, begin: Offset, most: int | None) -> Offset | None:
        """Settle up to `begin`, reserve the next batch of at most `most` entries, and return its end; None where there
        is nothing."""
        self._check_owner(begin)
        return self._again_where_something_vanishes(lambda server: self._next(server, begin, most))

    def plan(self, begin: Offset, end: Offset) -> Plan:
        """The batch as tasks. After a restart the pending list tells what the batch held (S5)."""
        self._check_owner(begin)
        self._check_owner(end)
        if begin == end:
            return Plan([], narrowed=False)
        is_new = self._reserved is not None and self._reserved[0] == end
        if not self._narrowing.has_tried(end) and not (is_new and self._options["maxDeliveries"] is None):
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
        return Plan.of(tasks(runs, size, self._options["ordered"]), self._narrowing.tells_the_sink(end))

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

    def _again_where_something_vanishes(self, step: Callable[[Connection], T]) -> T:
        """Where that is allowed: another look says what is lost with it."""
        for _ in range(_LOOKS - 1):
            try:
                return self._server.run(step)
            except (GroupMissingError, DataLossError):
                if not self._losses.allowed:
                    raise
                self._begin_afresh()
        return self._server.run(step)

    def _first(self, server: Connection) -> Offset:
        self._streams.join(server)
        positions = first_positions(server, self.member, self._streams.late)
        # Without a pending list the group's position moves on before the checkpoint knows a first one: that of a run
        # which came to no checkpoint holds, whatever this one has.
        pins = self._pins
        kept = (
            save_initial_positions(server, pins, positions)
            if self._no_ack
            else saved_initial_positions(server, pins, list(positions))
        )
        self._pinned_at = "" if kept else None
        return replace(self._offset({**positions, **kept}), no_ack=bool(kept))

    def _until_now(self, server: Connection) -> None:
        self._streams.join(server)  # Spark asks for this before it asks where the query begins
        self._admission.until = stream_states(server, self.member.streams)

    def _begin_afresh(self) -> None:
        """Take nothing for known: the server is asked, as after a restart."""
        self._fresh = True
        self._settling.forget()
        self._narrowing.forget()
        self._taken.forget()

    # -- a trigger -----------------------------------------------------------------------------------------------

    def _next(self, server: Connection, begin: Offset, most: int | None) -> Offset | None:
        ahead = self._wait_for_beside(server)
        streams = self._streams.of(server, begin, look=self._admission.until is None, at_once=self._fresh)
        self._turn += 1
        if begin.token:
            begin = self._with_pins(server, begin)
        if begin.token and self._fresh:
            self._settling.marks.read(server, [*{*streams, *begin.positions}])
        logged = begin = self._without_dropped(server, begin, streams)
        ends = {} if ahead is None else ahead.ends()
        marks = self._settling.marks
        begin, states = self._groups.reconciled(server, self.member, logged, streams, marks, ends, self._fresh)
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
        above: dict[str, int] | None = None
        expected = Counter(unsettled) if ahead is None else Counter(unsettled) + ahead.pending()
        if self._fresh or self._is_surprised(states, expected, ends):
            states = self._look_closely(server, begin, list(states))
            ahead, unsettled = None, {}
            above = {} if self._no_ack else {stream: state.ours for stream, state in states.items()}
        elif ahead is not None:
            self._groups.counts.took(ahead.runs)
        self._groups.account(server, self.member, begin, states, above)
        token = secrets.token_hex(6)
        claimed = self._narrowing.next_piece(server, self.member, states, logged)
        runs: list[EntryRange] = []
        new: list[EntryRange] | None = None
        if not claimed:
            claimed = self._claim(server, begin, states, token, most)
            room = None if most is None else most - sum(one.count for some in claimed.values() for one in some)
            runs = ahead.runs if ahead is not None else self._leftovers(server, begin, states, unsettled, room)
            if ahead is not None or not runs:
                room = None if room is None else room - sum(run.count for run in runs)
                new = self._new_entries(server, states, room, hurry=bool(claimed or runs))
                runs = runs + new
        if not runs and not claimed:
            claimed = self._narrowing.last_resort(server, logged)
        self._fresh = False
        self._left = {stream: state.last_delivered for stream, state in states.items()}
        self._left |= {run.stream: run.last for run in new or []}
        if not runs and not claimed:
            if not self._settling.is_done(begin):
                self._settling.now(server, begin)
            return None
        self._admission.made()
        counts = self._groups.counts_at({} if new is not None else Counter(above) - per_stream(runs))
        end = replace(begin.after(runs, token, claimed), no_ack=self._no_ack, counts=counts)
        if claimed:
            size = self._admission.size([one.count for some in claimed.values() for one in some])
            theirs = pending_runs(server, self.member, claimed_ranges(claimed), size)
            for one in missing_from(claimed, theirs):
                self._lose(one.stream, one.count, str(one), GO_ON)
            runs += theirs
            runs = in_order(server, self.member, runs) if self._options["ordered"] else runs
        if self._options["delivery"] == "at-most-once":
            runs = self._settle_at_once(server, end, runs)
        self._reserved = (end, runs)
        if not self._settling.is_done(begin):
            self._settling.beside(server, begin)
        if new is not None and not claimed:
            self._reserve_ahead(states, new, most)
        return end

    def _look_closely(self, server: Connection, begin: Offset, streams: Sequence[str]) -> dict[str, GroupState]:
        """The groups as they are, when what the checkpoint has is acknowledged and what others have done to our entries
        is known. Raises DataLossError where entries were passed over and that is not allowed."""
        marks = self._settling.marks
        if not self._fresh and not marks.are_there(server):
            self._begin_afresh()  # the server came back from an older state, without our noticing
            marks.read(server, streams)
        given_up: set[str] = set()
        if self._fresh:
            given_up = {stream for stream, mark in marks.of.items() if mark.holds}
            given_up |= set(streams) if self._at_once or begin.no_ack else set()
        self._settling.now(server, begin)
        states = self._groups.now(server, self.member, streams)
        if self._no_ack:
            return states
        floors = {stream: marks.floor(stream) for stream in streams}
        # What is pending above a group that was set back is given again.
        again = [PendingRange(s, MAX_ID, state.last_delivered) for s, state in states.items() if state.ours]
        changed = settle(server, self.member, again) > 0
        if take_handed(server, self.member, states, floors, secrets.token_hex(6)) or changed:
            states = self._groups.now(server, self.member, streams)
        if self._fresh:
            delete_empty_consumers(server, self.member, states)
        # At most once: what a crash has kept from being read is given up, and no loss.
        self._groups.forget([s for s in streams if s in given_up and states[s].last_delivered > begin[s]])
        kept = {stream: state for stream, state in states.items() if stream not in given_up}
        self._groups.explain(server, self.member, begin, kept)
        return states

    def _is_surprised(
        self, states: Mapping[str, GroupState], expected: Mapping[str, int], ends: Mapping[str, StreamId]
    ) -> bool:
        """Whether a group that is ours alone does not stand where it was left, or more is pending than we know of."""
        for stream, state in states.items():
            left = ends.get(stream, self._left.get(stream))
            moved = left is not None and state.last_delivered != left and not shared(self.member, state)
            if state.ours > expected[stream] or (moved and not self._no_ack):
                return True
        return False

    def _without_dropped(self, server: Connection, begin: Offset, streams: Sequence[str]) -> Offset:
        """The checkpoint without streams that the options name no more and whose group is gone."""
        if self._fresh and not self._streams.by_pattern:
            dropped = [stream for stream in begin.streams if stream not in streams]
            _, states = fetch_state(server, self.member, dropped)
            self._dropped = {stream for stream, state in states.items() if state is None}
        return begin.without(self._dropped) if self._dropped & {*begin.streams} else begin

    def _with_pins(self, server: Connection, begin: Offset) -> Offset:
        """The checkpoint, told that groups may stand above it without a pending list.

        A checkpoint of a noAck run says so itself. The first noAck run after others keeps the checkpoint's positions on
        the server before it reserves, until there is one of its own; who finds them there comes after such a run.
        """
        known = list(begin.positions)
        if self._fresh:
            self._streams.has_checkpoint(server, begin)
            kept = saved_initial_positions(server, self._pins, known)
            if begin.no_ack or any(at != begin[stream] for stream, at in kept.items()):
                forget_initial_positions(server, self._pins, list(kept))  # of a checkpoint before this one
                kept = {}
            if self._no_ack and not begin.no_ack:
                kept = save_initial_positions(server, self._pins, begin.positions)
            self._pinned_at = begin.token if kept else None
        if self._pinned_at != begin.token and (self._no_ack or self._pinned_at is not None):
            # Also those of streams that a noAck run has met since.
            forget_initial_positions(server, self._pins, [stream for stream in known if stream not in self._unpinned])
            self._unpinned, self._pinned_at = set(known), None
        return replace(begin, no_ack=begin.no_ack or self._pinned_at == begin.token)

    def _wait_for_beside(self, server: Connection) -> Prefetch | None:
        """Until what was begun beside the tasks is finished; what it has reserved for this batch, if it is of use."""
        ahead, self._ahead = self._ahead, None
        try:
            self._beside.wait()
        except StreamStateError:
            # A stream or group is gone: the look that follows says which, and whether that is allowed.
            self._begin_afresh()
            return None
        return None if ahead is None or not ahead.runs or self._fresh else ahead

    def _reserve_ahead(self, states: Mapping[str, GroupState], new: Sequence[EntryRange], most: int | None) -> None:
        """Begin to reserve what follows a batch, where it is much and goes to nobody else. new: what was reserved since
        the groups stood like this."""
        if self._options["delivery"] == "at-most-once" or self._options["claimIdle"] is not None:
            return
        if any(state.others for state in states.values()):
            return
        left = Counter(self._admission.backlog(self._groups.heads, states))
        left.subtract(per_stream(new))
        if is_worth_it(self._admission, left, most):
            self._ahead = Prefetch(self._reserving, list(states), most, self._turn + 1, self._groups.heads)
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
    def _pins(self) -> InitialPositionKeys:
        return InitialPositionKeys("start", self.member)

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
        options = self._options
        rules = Rules(options["claimIdle"], options["maxDeliveries"], self._bury, self._lose, self._taken)
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

    def _lose(self, stream: str, count: int, what: str, todo: str) -> None:
        """Entries that were claimed, or should have been, are gone."""
        if not self._losses.allowed:
            raise DataLossError(f"stream {stream!r}: {count} entries {what}; {todo}")
        self._losses.add(stream, count, what)

    def _leftovers(
        self,
        server: Connection,
        begin: Offset,
        states: Mapping[str, GroupState],
        unsettled: Mapping[str, int],
        most: int | None,
    ) -> list[EntryRange]:
        """Entries that a crashed run reserved and did not log: pending for us above what is settled."""
        backlog = {s: state.ours for s, state in states.items() if state.ours > unsettled.get(s, 0)}
        if not backlog:
            return []
        allowed = backlog if most is None else share(most, backlog, self._turn)
        asked = [PendingRange(s, MAX_ID, begin[s], most=entries) for s, entries in allowed.items()]
        return pending_runs(server, self.member, asked, self._admission.size(list(allowed.values())))

    def _new_entries(
        self, server: Connection, states: Mapping[str, GroupState], most: int | None, hurry: bool
    ) -> list[EntryRange]:
        """hurry: there is a batch anyway, so what is new need not wait for more to come."""
        backlog = self._admission.backlog(self._groups.heads, states)
        hurry |= self._narrowing.holds_some
        if not backlog or most == 0 or (not hurry and self._admission.should_wait(sum(backlog.values()))):
            return []
        most = self._narrowing.share_of(sum(backlog.values()), most)
        while backlog:
            reserved = self._reserving.new_entries(server, self._groups.heads, states, backlog, most, self._turn)
            self._groups.took(self.member, states, reserved)
            if reserved.runs or not reserved.states:
                return reserved.runs
            # What these streams had was deleted, or others were faster: the turn is that of those that were left out.
            backlog = {stream: entries for stream, entries in backlog.items() if stream not in reserved.states}
        return []

    def _settle_at_once(self, server: Connection, end: Offset, runs: Sequence[EntryRange]) -> list[EntryRange]:
        """at-most-once: acknowledge the batch before it is read. A range that others read from too takes the ids of our
        entries along, since the pending list will not have them."""
        kept: list[EntryRange] = []
        for run in runs:
            ours = PendingRange(run.stream, run.last, run.after, run.consumer)
            kept += [run] if run.owned else pending_runs(server, self.member, [ours], run.count, keep_ids=True)
        shares = [PendingRange(stream, end[stream], held.after or MIN_ID) for stream, held in end.shares.items()]
        settle(server, self.member, [*shares, *claimed_ranges(end.claimed)])
        return kept

    # -- a batch again -------------------------------------------------------------------------------------------

    def _again(self, server: Connection, begin: Offset, end: Offset) -> list[EntryRange]:
        self._streams.hold(server, end.streams)
        void(server, self.member, end.streams)
        cut = self._narrowing.has_cut(end)
        listed = not (self._no_ack or end.no_ack)
        runs = Replay(server, self.member, self._losses, listed, self._admission.size, cut).runs(begin, end)
        return in_order(server, self.member, runs) if self._options["ordered"] else runs

    def _try(self, server: Connection, begin: Offset, end: Offset) -> None:
        """Count this run's attempt at a batch; where too many have died of it, it is set aside."""
        self._streams.hold(server, end.streams)
        try:
            self._narrowing.attempt(server, self.member, begin, end)
        except (GroupMissingError, DataLossError):
            if not self._losses.allowed:
                raise
            _, states = fetch_state(server, self.member, end.streams)
            gone = [stream for stream, state in states.items() if state is None]
            self._narrowing.attempt(server, self.member, begin, end, gone)

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
