"""The driver's side of a query, without Spark: settle what is committed, reserve the next batch, plan it.

A micro-batch (start, end] is exactly our consumer's pending entries in that range. `next(start)` is only ever asked
with a start that is in the commit log (FACTS S4), so it settles that, then reserves: first what a crash left pending
above `start`, then what it may claim from dead consumers, then new entries. A batch that follows another one of the
same run is settled in the background, beside the tasks of its successor; at an idle tick it is settled before the
answer.

State that lives here is a convenience: all that a restart needs is in the offset and on the server.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from spark_streams.deadletter.letter import Letter, now, post
from spark_streams.errors import DataLossError, GroupMissingError, OffsetError, ServerUnreachableError, StreamStateError
from spark_streams.ids import MAX_ID, MIN_ID, StreamId
from spark_streams.options import Options
from spark_streams.source.claim import Overdue, Rules, delete_claim_consumers, take_over
from spark_streams.source.group import GroupState, Membership, StreamState, look, missing, stream_states
from spark_streams.source.lease import Lease
from spark_streams.source.losses import Losses, check_trimmed, reconcile
from spark_streams.source.notes import collect
from spark_streams.source.offsets import Claimed, Offset, Share
from spark_streams.source.pending import PendingRange, pending_runs, settle
from spark_streams.source.plan import Run, Task, share, tasks
from spark_streams.source.reserve import STEP, Wanted, require_alone, reserve
from spark_streams.source.settle import Settler
from spark_streams.source.start import (
    create_groups,
    create_groups_of_pattern,
    first_positions,
    matching_streams,
    set_groups_to,
)
from spark_streams.wire.connection import Connection

_ENDLESS = 1 << 62  # a backlog that the server cannot count
_LOOK_FOR_STREAMS = 2.0  # seconds between two looks for streams that match the pattern
_PATIENCE = 60.0  # seconds that a server may be away before the query gives up
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
        self._settler = Settler(options.address, self._member)
        self._losses = Losses(not options["failOnDataLoss"])
        self._dead: dict[str, int] = {}  # letters posted by this run, per stream
        self._claimed: dict[str, int] = {}  # entries taken over by this run, per stream
        self._server: Connection | None = None
        self._was_connected = False
        self._found = 0.0  # when streams were last looked for
        self._turn = 0  # triggers so far
        self._fresh = True  # nothing is known of what an earlier run left behind
        self._settled: dict[str, StreamId] = {}
        self._handed: Offset | None = None  # given to the settler
        self._spent: Mapping[str, Sequence[Claimed]] = {}  # claims whose consumers go when it has settled them
        self._reserved: tuple[Offset, Offset, list[Run]] | None = None
        self._until: Mapping[str, StreamState] | None = None  # where an AvailableNow run ends
        self._waiting_since: float | None = None  # fewer than minEntriesPerTrigger are there
        self._heads: Mapping[str, StreamState] = {}

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
        return self._patiently(lambda: self._next(begin, most))

    def plan(self, begin: Offset, end: Offset) -> list[Task]:
        """The batch as tasks. After a restart the pending list tells what the batch held (S5)."""
        self._check_owner(begin)
        self._check_owner(end)
        if begin == end:
            return []
        if self._reserved is not None and self._reserved[:2] == (begin, end):
            runs = self._reserved[2]
        elif self._options["delivery"] == "at-most-once":
            _log.warning("a batch that a crash interrupted is given up (delivery=at-most-once): %s", end.to_json())
            runs = []
        else:
            runs = self._patiently(lambda: self._again(begin, end))
        return tasks(runs, self._size([run.count for run in runs]), self._options["ordered"])

    def commit(self, end: Offset) -> None:
        """Settle up to `end`, unless that is done or under way. The same code as in `next` (S3)."""
        self._check_owner(end)
        if self._handed != end:
            self._patiently(lambda: self._finish(end))

    def reported(self) -> dict[str, object]:
        """Where the streams end, and what this run has lost, claimed and given up so far."""
        heads = {stream: state.last for stream, state in self._heads.items()}
        told = {"lost": self._losses.counts, "claimed": self._claimed, "dead": self._dead}
        return {**self._offset(heads).to_json(), **{name: dict(counts) for name, counts in told.items() if counts}}

    def stop(self) -> None:
        """Give the lease back and close the connections."""
        self._lease.release()
        self._settler.close()
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
        """Run a step, again where the server was lost in the midst of it: every step may be repeated.

        Raises ServerUnreachableError at once where nothing ever answered, else after _PATIENCE.
        """
        deadline: float | None = None
        pause = 0.1
        while True:
            try:
                return step()
            except ServerUnreachableError as error:
                self._disconnect()
                self._begin_afresh()
                deadline = deadline or self._now() + _PATIENCE
                if not self._was_connected or self._now() > deadline:
                    raise
                _log.warning("%s; trying again in %.1f s", error.message, pause)
                time.sleep(pause)
                pause = min(5.0, 2 * pause)

    # -- beginning -----------------------------------------------------------------------------------------------

    def _first(self) -> Offset:
        server = self._connection()
        if self._options["streamsPattern"] is not None:
            self._find_streams(self._options["startingOffsets"])
        else:
            self._lease.hold(server, self._member.streams)
            create_groups(server, self._member, self._member.streams, self._options["startingOffsets"])
        return self._offset(first_positions(server, self._member))

    def _until_now(self) -> None:
        if self._options["streamsPattern"] is not None:
            self._find_streams(self._options["startingOffsets"])
        self._until = stream_states(self._connection(), self._member.streams)

    def _find_streams(self, starting: object) -> None:
        """Look for the pattern's streams and join those that are new."""
        letters = self._options["deadLetterStream"]
        server = self._connection()
        found = matching_streams(server, self._options["streamsPattern"], [letters] if letters else [])
        self._lease.hold(server, found)
        have = create_groups_of_pattern(server, self._member, found, starting)  # type: ignore[arg-type]
        self._member = replace(self._member, streams=tuple(have))
        self._found = self._now()

    def _streams_of(self, begin: Offset) -> tuple[str, ...]:
        """The streams of this trigger: those of the options, or of the pattern and the checkpoint."""
        if self._options["streamsPattern"] is None:
            # Streams that the query was given since; the others' groups must be there, or something is lost.
            new = [stream for stream in self._member.streams if stream not in begin.positions]
            create_groups(self._connection(), self._member, new, self._options["startingOffsets"])
            return self._member.streams
        if self._until is None and (self._fresh or self._now() - self._found >= _LOOK_FOR_STREAMS):
            self._find_streams(self._options["startingOffsets"])
        return tuple(sorted({*self._member.streams, *begin.positions}))

    # -- a trigger -----------------------------------------------------------------------------------------------

    def _next(self, begin: Offset, most: int | None) -> Offset | None:
        server = self._connection()
        self._wait_for_settler()
        streams = self._streams_of(begin)
        self._lease.hold(server, streams)
        self._turn += 1
        begin, states = self._look(begin, streams)
        # What the batch before this one left pending is known, so settling it can wait until tasks run.
        unsettled = {} if self._fresh or self._at_once else {s: one.count for s, one in begin.shares.items()}
        if (
            self._fresh
            or self._at_once
            or any(state.ours > unsettled.get(stream, 0) for stream, state in states.items())
        ):
            self._finish(begin)
            unsettled = {}
            states = self._groups(list(states))
        token = secrets.token_hex(6)
        claimed = self._claim(begin, states, token, most)
        room = None if most is None else most - sum(one.count for some in claimed.values() for one in some)
        runs = self._leftovers(begin, states, unsettled, room) or self._new_entries(states, room, bool(claimed))
        self._fresh = False
        if not runs and not claimed:
            if unsettled or begin.claimed:
                self._finish(begin)
            return None
        self._waiting_since = None
        self._losses.took(runs)
        end = begin.after(runs, token, claimed)
        runs += self._runs_of(claimed)
        if self._options["delivery"] == "at-most-once":
            runs = self._settle_at_once(end, runs)
        self._reserved = (begin, end, runs)
        if unsettled or begin.claimed:
            self._hand_over(begin)
        return end

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
            heads = {stream: head for stream, head in heads.items() if stream not in gone}
            found = {stream: state for stream, state in found.items() if stream not in gone}
            begin = begin.without(gone)
        if self._options["noAck"]:
            self._require_alone(begin, found)
        self._heads = heads
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

    def _require_alone(self, begin: Offset, states: dict[str, GroupState | None]) -> None:
        """noAck: nobody else may read from the group, and it stands where the checkpoint stands."""
        back = {}
        for stream, state in states.items():
            if state is None:
                continue
            require_alone(self._member, stream, state)
            if self._fresh and stream in begin.positions and state.last_delivered != begin[stream]:
                # Without a pending list the checkpoint is the only truth.
                back[stream] = begin[stream]
                states[stream] = replace(state, last_delivered=begin[stream], entries_read=None, lag=None)
        set_groups_to(self._connection(), self._member, back)

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
        server, to = self._connection(), self._options["deadLetterStream"]
        for entry, deliveries in zip(overdue.ids, overdue.deliveries, strict=True):
            found = server.execute("XRANGE", overdue.stream, bytes(entry), bytes(entry))
            if not found:
                self._losses.add(overdue.stream, 1, f"entry {entry} was deleted while pending")
                server.execute("XACK", overdue.stream, self._member.group, bytes(entry))
                continue
            when = now()
            envelope = {
                "stream": overdue.stream,
                "id": str(entry),
                "group": self._member.group,
                "consumer": overdue.consumer,
                "stage": "claim",
                "reason": "deliveries",
                "message": f"delivered {deliveries} times, maxDeliveries={self._options['maxDeliveries']}",
                "deliveries": str(deliveries),
                "first-failed": when,
                "last-failed": when,
                "redrives": "0",
            }
            letter = Letter(overdue.stream, bytes(entry), found[0][1], envelope)
            post(server, to, self._member.group, [letter])
            self._dead[overdue.stream] = self._dead.get(overdue.stream, 0) + 1

    def _leftovers(
        self, begin: Offset, states: Mapping[str, GroupState], unsettled: Mapping[str, int], most: int | None
    ) -> list[Run]:
        """Entries that a crashed run reserved and did not log: pending for us above what is settled."""
        backlog = {s: state.ours for s, state in states.items() if state.ours > unsettled.get(s, 0)}
        if not backlog:
            return []
        allowed = backlog if most is None else share(most, backlog, self._turn)
        asked = [PendingRange(s, MAX_ID, begin[s], most=entries) for s, entries in allowed.items()]
        return pending_runs(self._connection(), self._member, asked, self._size(list(allowed.values())))

    def _new_entries(self, states: Mapping[str, GroupState], most: int | None, hurry: bool) -> list[Run]:
        backlog = {stream: self._backlog(stream, state) for stream, state in states.items()}
        backlog = {stream: entries for stream, entries in backlog.items() if entries > 0}
        if not backlog or (not hurry and self._should_wait(sum(backlog.values()))):
            return []
        allowed = backlog if most is None else share(most, backlog, self._turn)
        wanted = {s: Wanted(entries, self._end_of(s).last) for s, entries in allowed.items() if entries > 0}
        step = min(STEP, self._size(list(allowed.values())))
        return reserve(self._connection(), self._member, wanted, states, step, self._options["noAck"])

    def _should_wait(self, backlog: int) -> bool:
        """minEntriesPerTrigger: whether the entries that are there are held back for more to come."""
        least = self._options["minEntriesPerTrigger"]
        if least is None or backlog >= least or self._until is not None:
            return False
        if self._waiting_since is None:
            self._waiting_since = self._now()
        delay: int = self._options["maxTriggerDelay"]
        return (self._now() - self._waiting_since) * 1000 < delay

    def _end_of(self, stream: str) -> StreamState:
        """Where this trigger, or an AvailableNow run, may go on a stream."""
        if self._until is not None:
            return self._until.get(stream, StreamState(MIN_ID, 0, 0, None))
        return self._heads[stream]

    def _backlog(self, stream: str, state: GroupState) -> int:
        """How many entries the group has yet to deliver, up to where this trigger or this run may go.

        The server's counts can be wrong (XGROUP … ENTRIESREAD) or unknown: while the position says that there is more,
        there is, and `reserve` finds its end.
        """
        head = self._end_of(stream)
        if state.last_delivered >= head.last:
            return 0
        counts = [] if state.lag is None else [state.lag]
        if head.added is not None and state.entries_read is not None:
            counts.append(head.added - state.entries_read)
        return min(counts) if counts and min(counts) > 0 else _ENDLESS

    def _size(self, counts: Sequence[int]) -> int:
        """How many entries a task reads: entriesPerPartition, less where minPartitions asks for more tasks."""
        size: int = self._options["entriesPerPartition"]
        least = self._options["minPartitions"]
        known = sum(count for count in counts if count < _ENDLESS)
        return size if least is None or known == 0 else max(1, min(size, -(-known // least)))

    # -- settling ------------------------------------------------------------------------------------------------

    def _wait_for_settler(self) -> None:
        try:
            self._settler.wait()
            delete_claim_consumers(self._connection(), self._member, self._spent)
            self._spent = {}
        except StreamStateError:
            # A stream or group is gone: the look that follows says which, and whether that is allowed.
            self._begin_afresh()

    def _begin_afresh(self) -> None:
        """Take nothing for settled: the server is asked, as after a restart."""
        self._fresh = True
        self._settled = {}
        self._handed = None

    def _finish(self, up_to: Offset) -> None:
        """What tasks noted becomes letters, then our entries up to `up_to` are acknowledged, and its claims."""
        server = self._connection()
        self._take_notes(up_to)
        settle(server, self._member, self._to_settle(up_to))
        delete_claim_consumers(server, self._member, up_to.claimed)
        self._settled.update(up_to.positions)
        self._handed = up_to

    def _hand_over(self, up_to: Offset) -> None:
        """The same in the background, but for the notes."""
        self._take_notes(up_to)
        self._settler.submit(self._to_settle(up_to))
        self._spent = up_to.claimed
        self._settled.update(up_to.positions)
        self._handed = up_to

    def _to_settle(self, up_to: Offset) -> list[PendingRange]:
        if self._options["noAck"]:
            return []
        moved = [(stream, at) for stream, at in up_to.positions.items() if self._settled.get(stream) != at]
        ours = [PendingRange(stream, at) for stream, at in moved]
        return ours + _claimed_ranges(up_to.claimed)

    def _take_notes(self, up_to: Offset) -> None:
        """Dead letters and losses that the tasks of the batch that ends here have noted."""
        if self._handed == up_to or not (self._losses.allowed or self._options["mode"] == "DEADLETTER"):
            return
        streams = list(up_to.positions)
        notes = collect(self._connection(), self._member, streams, up_to.token, self._options["deadLetterStream"])
        for stream, count in notes.lost.items():
            self._losses.add(stream, count, "trimmed or deleted while they were pending")
        for stream, count in notes.letters.items():
            self._dead[stream] = self._dead.get(stream, 0) + count

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
        """The batch again, after a restart: from our pending list, held against what the offset says it held."""
        self._lease.hold(self._connection(), list(end.positions))
        runs: list[Run] = []
        for stream, one in end.shares.items():
            after = begin[stream] if one.after is None else one.after
            if after < end[stream]:
                runs += self._pending_of(stream, after, end[stream], one)
        for stream, some in end.claimed.items():
            for claimed in some:
                found = self._pending(stream, claimed.consumer, MIN_ID, MAX_ID, claimed.count)
                self._compare(stream, claimed.count, found, f"that {claimed.consumer!r} had claimed")
                runs += found
        return runs

    def _runs_of(self, claimed: Mapping[str, Sequence[Claimed]]) -> list[Run]:
        """What this trigger has claimed, as runs. An entry that was deleted meanwhile is not counted as lost."""
        asked = _claimed_ranges(claimed)
        size = self._size([one.count for some in claimed.values() for one in some])
        return pending_runs(self._connection(), self._member, asked, size) if asked else []

    def _pending(self, stream: str, consumer: str, after: StreamId, last: StreamId, count: int) -> list[Run]:
        asked = [PendingRange(stream, last, after, consumer)]
        return pending_runs(self._connection(), self._member, asked, self._size([count]))

    def _pending_of(self, stream: str, after: StreamId, last: StreamId, held: Share) -> list[Run]:
        if self._options["noAck"]:
            return [Run(stream, after, last, held.count, owned=True, counted=False)]
        found: list[Run] = []
        try:
            found = self._pending(stream, self._member.consumer, after, last, held.count)
        except (GroupMissingError, DataLossError):
            if not held.owned and not self._losses.allowed:
                raise
        if held.owned:
            # The range was all ours: the stream itself has the batch, whatever has become of the pending list.
            if sum(run.count for run in found) == held.count:
                return [replace(run, owned=True) for run in found]
            return [Run(stream, after, last, held.count, owned=True)]
        self._compare(stream, held.count, found, f"above {after} up to {last}")
        return found

    def _compare(self, stream: str, count: int, found: Sequence[Run], which: str) -> None:
        gone = count - sum(run.count for run in found)
        if gone > 0 and not self._losses.allowed:
            raise DataLossError(
                f"stream {stream!r}: {gone} of {count} entries of the batch {which} are no longer pending for consumer "
                f"{self._member.consumer!r} of group {self._member.group!r} (acknowledged, claimed by another "
                "consumer, or XGROUP DELCONSUMER); set failOnDataLoss=false to go on without them"
            )
        self._losses.add(stream, max(0, gone), "no longer pending when the batch was read again")

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


def _claimed_ranges(claimed: Mapping[str, Sequence[Claimed]]) -> list[PendingRange]:
    """All that the consumers of claims hold."""
    return [PendingRange(stream, MAX_ID, consumer=one.consumer) for stream, some in claimed.items() for one in some]
