"""The driver's side of a query, independent of Spark: the calls that Spark makes to a streaming source.

A micro-batch is exactly the entries that are pending for the query's consumer in the ranges of its offset (see
source.offset). With noAck it is the range itself. Spark calls `next(start)` only with a
start that is in its commit log (docs/internals/facts.md, S4). So the query may acknowledge entries up to there
(trigger.trigger).

The query acknowledges a batch in the background while the tasks of the next batch run. If there is no next batch, it
acknowledges before `next` returns. If many entries are left, it also reserves the batch after that in the background
(prefetch).

State in this process only saves work: the offset and the server have all that a restart needs.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TypeVar

from spark_streams.errors import DataLossError, GroupMissingError, OffsetError, StreamStateError
from spark_streams.model.counters import DEAD, LOST
from spark_streams.model.keys import origin_of
from spark_streams.options.source_options import SourceOptions
from spark_streams.source.group.admin import begin_batches, streams_without_group
from spark_streams.source.group.findings import Finding, Kind
from spark_streams.source.group.opening import Opened, Opening
from spark_streams.source.group.remedies import DataLoss, MessageContext
from spark_streams.source.group.server_checks import require_entry_counts, require_no_eviction
from spark_streams.source.group.state import Reserved, fetch_state, missing
from spark_streams.source.group.stream_set import StreamSet
from spark_streams.source.limits import LIMITS, Limits
from spark_streams.source.membership import Membership
from spark_streams.source.offset import Offset, StreamOffset
from spark_streams.source.part import Part
from spark_streams.source.partitioning import Plan, divide_into_tasks
from spark_streams.source.pending.claim import Claims
from spark_streams.source.pending.dead_entries import DeadEntries, dead_letter
from spark_streams.source.pending.poison_batch import PoisonBatch
from spark_streams.source.pending.poison_record import CachedPoisonState
from spark_streams.source.query.batch_pace import BatchPace
from spark_streams.source.query.idle import Idle
from spark_streams.source.query.replay import Replay
from spark_streams.source.run_counters import RunCounters
from spark_streams.source.task.missing_entries import delete_missing
from spark_streams.source.task.notes import keep_due_notes, open_notes
from spark_streams.source.trigger.acknowledge import Acknowledging
from spark_streams.source.trigger.admission import Admission
from spark_streams.source.trigger.background import BackgroundWorker
from spark_streams.source.trigger.batch_contents import ContentsChooser
from spark_streams.source.trigger.bookmarked import Bookmarked
from spark_streams.source.trigger.delivered import Delivered
from spark_streams.source.trigger.observe import Observer
from spark_streams.source.trigger.remove import Removing
from spark_streams.source.trigger.run_state import RunState
from spark_streams.source.trigger.trigger import Trigger
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.xinfo import StreamState, stream_states
from spark_streams.wire.session import Session

_TRIES = 5  # attempts of a trigger during which streams or groups vanish (failOnDataLoss=false)
_log = logging.getLogger("spark_streams.source")

T = TypeVar("T")


@dataclass(frozen=True)
class CurrentBatch:
    """The batch that Spark is running.

    end: its offset, whose token names the batch; parts: its entries, None: not known yet; is_new: this run has created
    the batch; is_counted: this run's attempt at it was counted (maxDeliveries); is_opened: this run has created the key
    for the notes of its tasks (source.task.notes); is_cut: entries of it were set aside (source.pending.poison_batch);
    noted: see Plan.
    """

    end: Offset
    parts: list[Part] | None = None
    is_new: bool = False
    is_counted: bool = False
    is_opened: bool = False
    is_cut: bool = False
    noted: frozenset[str] = frozenset()


def _begun_with(begin: Offset, end: Offset) -> list[str]:
    """Return the streams whose account Spark has logged with this batch for the first time: it is their first batch, or
    it keeps a correction."""
    return [
        stream
        for stream, at in end.at.items()
        if (at.number == 1 and stream in end.taken_from) or (at.number == 0 and _read_of(begin, stream) != at.read)
    ]


def _read_of(offset: Offset, stream: str) -> int | None:
    return offset.at[stream].read if stream in offset.at else None


class MicroBatchStream:
    """The batches of one query. One thread may use it. now: a monotonic clock, in seconds; worker: runs jobs while
    tasks run; first_at_once: the first trigger does not wait for minEntriesPerTrigger."""

    def __init__(
        self,
        options: SourceOptions,
        now: Callable[[], float] = time.monotonic,
        worker: BackgroundWorker | None = None,
        limits: Limits = LIMITS,
        first_at_once: bool = False,
    ) -> None:
        self._options = options
        self._limits = limits
        self._server = Session(options.address, f"group {options.group!r}", greet=self._greet)
        self.worker = worker or BackgroundWorker(options.address)
        self.counters = RunCounters()
        self.run_name = secrets.token_hex(6)
        place = MessageContext(
            Membership((), options.group, options.consumer), str(options.address), options.address.forgets
        )
        losses = self._losses = DataLoss(not options.fail_on_data_loss, place, self.counters.entries(LOST))
        streams = self._streams = StreamSet(options, now, limits)
        self._opening = Opening(options, streams)
        poison = self._poison = PoisonBatch(
            options.max_deliveries, self.member, self.run_name, self._dead_letter, losses, limits
        )
        removing = self._removing = Removing(options, streams.retries, now, limits)
        delivery = Bookmarked(options, limits) if options.no_ack else Delivered(options, limits)
        acks = self._acknowledging = Acknowledging(options, losses, self.counters, removing, poison, delivery)
        claims = Claims(options, streams, losses, self.counters, self._dead_letter, limits)
        contents = ContentsChooser(options, poison, delivery)
        observer = Observer(delivery, streams, losses, acks)
        self._trigger = Trigger(options, observer, contents, claims, acks, now)
        self._idle = Idle(options.address, now, limits)
        self._is_idle = False
        self._current: CurrentBatch | None = None
        self._now = now
        self._run = RunState(is_known=False, admission=Admission.of_options(options, first_at_once))
        target = options.target_batch_time
        self._pace = None if target is None else BatchPace(target / 1000)
        self._has_warned = False  # that batches do not take the target
        self._prefetching: Future[object] | None = None  # the reservation for the next trigger
        self._heads: Mapping[str, StreamState] = {}  # of the last trigger, for reports
        self._reported_heads: Mapping[str, StreamState] | None = None  # those of the last report
        self._reported_ends: Mapping[str, object] = {}  # their JSON form

    def _greet(self, server: Server) -> None:
        """Refuse a server on which the query could lose entries without noticing."""
        require_entry_counts(server)
        require_no_eviction(server, self._options)

    @property
    def member(self) -> Membership:
        """The group and consumer of the query."""
        return self._streams.member

    @property
    def knows_fields(self) -> bool:
        """Whether the query knows which declared columns no entry has. Then tasks need not find out."""
        return self._run.knows_fields

    # -- calls of Spark ------------------------------------------------------------------------------------------

    def trust_address(self) -> None:
        """Wait for the server if it does not answer: it has answered an earlier run at this address."""
        self._server.trust()

    def first(self) -> Offset:
        """Return the first offset of a query without a checkpoint. The group keeps it on the server: a second call
        returns the same offset (S2)."""
        return self._again_where_something_vanishes(lambda server, run: (self._first(server), run))

    def until_now(self) -> None:
        """End the run at the present last entries of the streams (AvailableNow)."""
        self._step(self._until_now)

    def open_groups(self, begin: Offset, existing: Sequence[str], question: Callable[[Server, Membership], T]) -> T:
        """Create the groups where the query begins, hold the lease, and ask a question, without reading an entry.

        existing: streams that must have the group, unless losses are allowed. Raises GroupMissingError.
        """
        self._check_owner(begin)

        def open_and_ask(server: Server) -> T:
            for stream in () if self._losses.allowed else streams_without_group(server, self.member, existing):
                raise missing(server, self.member, stream, stream_too=False)
            self._opened(server, begin, RunState(is_known=False))
            return question(server, self.member)

        return self.ask(open_and_ask)

    def hold(self) -> None:
        """Hold the lease without reading an entry, after `open_groups`."""
        self.ask(lambda server: self._streams.hold(server, ()))

    def next(self, begin: Offset, limit: int | None) -> Offset | None:
        """Reserve the next batch of at most `limit` entries, and return its end. None: there is nothing to read. What
        ends at `begin` is acknowledged in the background, or now if nothing follows."""
        self._check_owner(begin)
        self._server.renew_login()
        if self._pace is not None:
            self._pace = self._pace.called(self._now())
        was_idle, self._is_idle = self._is_idle, False
        if was_idle and self._idle.lasts(begin) and not self.ask(self._streams.has_changed):
            self._is_idle = True
            return None
        has_settled = self._run.has_settled(begin)
        began = self._now()
        limit = self._limit_by_time(begin, limit)
        batch = self._again_where_something_vanishes(lambda server, run: self._triggered(server, begin, limit, run))
        if batch is None:
            if not was_idle:
                self._idle.batch_ran()
            if has_settled:  # otherwise this trigger has acknowledged a batch, and the next one must see the result
                last = {stream: head.last for stream, head in self._heads.items()}
                self._idle.begin(begin, last, self._seconds_until_due())
                self._is_idle = True
            return None
        self._current = batch
        if self._pace is not None:
            self._pace = self._pace.planned(batch.end.held, began)
        return batch.end

    def _limit_by_time(self, begin: Offset, limit: int | None) -> int | None:
        """Return the limit of the next batch with targetBatchTime, else `limit`."""
        if self._pace is None:
            return limit
        pace = self._pace = self._pace.limited(begin.held, limit)
        assert pace.limit is not None
        if not self._has_warned and (problem := pace.problem()) is not None:
            self._has_warned = True
            _log.warning("%s", problem)
        return pace.limit

    def plan(self, begin: Offset, end: Offset) -> Plan:
        """Return the tasks of a batch. After a restart the pending list has the batch's entries (S5)."""
        self._check_owner(begin)
        self._check_owner(end)
        if begin == end:
            return Plan([], narrowed=False)
        batch = self._current
        if batch is None or batch.end != end:
            batch = CurrentBatch(end)
        try:
            if not batch.is_counted and not (batch.is_new and self._options.max_deliveries is None):
                # Once per run: Spark plans a batch again for each action on it. An earlier run may have cut its batch,
                # whether or not maxDeliveries is set now.
                is_cut = self._step(lambda server, run: self._count_attempt(server, begin, end, run))
                batch = self._current = replace(batch, is_cut=is_cut, is_counted=True)
            if first := _begun_with(begin, end):
                self.ask(lambda server: begin_batches(server, self.member, end, first))
            if batch.parts is None:
                again = batch
                batch = self._current = self.ask(lambda server: self._read_again(server, begin, again))
            parts = batch.parts or []
        except GroupMissingError:
            self.ask(lambda server: self._require_groups(server, begin, end))
            raise
        if end.notes and not batch.is_opened:  # once per run: later calls would hide that the key was deleted
            self.ask(lambda server: open_notes(server, self.member, end))
            self._current = replace(batch, is_opened=True)
        size = self._run.admission.size([part.count for part in parts])
        # If earlier runs wrote rows that this batch does not have, other batches have these rows. Those batches are
        # still to come while pieces are held.
        holds_pieces = self._run.poison.may_hold and self._run.poison.holds_pieces
        planned = divide_into_tasks(parts, size, self._options.ordered, self._limits)
        return Plan.of_tasks(planned, batch.is_cut or holds_pieces, batch.noted)

    def commit(self, end: Offset) -> None:
        """Spark has committed a batch (S3). Acknowledge it if this run has planned it and `next` has not yet.

        Nothing depends on this call. Spark calls it late, or never."""
        self._check_owner(end)
        if self._is_idle:
            self._idle.batch_ran()
        is_ours = self._current is not None and self._current.end == end
        if is_ours and not self._run.has_settled(end):
            try:
                self._step(lambda server, run: self._commit(server, end, run))
            except (GroupMissingError, DataLossError):
                # A stream or group has vanished. The next trigger reports the loss, and acknowledges the rest.
                if not self._losses.allowed:
                    raise

    def reported(self) -> dict[str, object]:
        """Return the ends of the streams, this run's counts of lost, claimed and dead-lettered entries, and of bad
        values, and the limit of the last batch by its time."""
        if self._reported_heads is not self._heads:  # Spark asks an idle query five times a second
            ends = {stream: state.last for stream, state in self._heads.items()}
            self._reported_heads = self._heads
            at = {stream: StreamOffset(end) for stream, end in ends.items()}
            self._reported_ends = Offset(self.member.group, self.member.consumer, at).to_json()
        waiting = self._streams.retries.waiting()
        limit = {} if self._pace is None else self._pace.to_json()
        return {**self._reported_ends, **self.counters.to_json(), **({"waiting": waiting} if waiting else {}), **limit}

    def stop(self) -> None:
        """Release the lease and close the connections."""
        self.worker.close()
        self._streams.release()
        self._idle.close()
        self._server.close()

    def _seconds_until_due(self) -> float:
        """Return how long an idle query need not ask the server if no stream gets an entry. 0: it asks each time."""
        limits = self._limits
        if self._run.admission.until is not None or not limits.idle_check:
            return 0.0
        due = [
            max(limits.idle_check, limits.idle_check_each * len(self._heads)),
            self._run.admission.seconds_until_due(self._now()),
            self._streams.retries.seconds_until_due(),
            self._removing.seconds_until_due(),
        ]
        if self._run.others_have_pending:
            due.append(limits.idle_check if self._options.claim_idle is None else self._options.claim_idle / 10_000)
        return max(0.0, min(due))

    # -- steps ---------------------------------------------------------------------------------------------------

    def _step(self, step: Callable[[Server, RunState], tuple[T, RunState]]) -> T:
        """Run a step with what this run knows. The step returns what is known after it.

        After a broken connection, Session.run waits for the server and runs the step again. Each attempt begins by
        making the run state unknown, so a step that fails leaves it unknown: the next attempt asks the server.
        """

        def attempt(server: Server) -> T:
            run, self._run = self._run, self._run.unknown()
            result, self._run = step(server, run)
            self._losses.step_ended()
            return result

        return self._server.run(attempt)

    def ask(self, question: Callable[[Server], T]) -> T:
        """Run a step that does not change what this run knows."""
        return self._step(lambda server, run: (question(server), run))

    def _again_where_something_vanishes(self, step: Callable[[Server, RunState], tuple[T, RunState]]) -> T:
        """Run a step again if a stream or group vanishes under it and losses are allowed: the next attempt counts what
        is lost with it."""
        for _ in range(_TRIES - 1):
            try:
                return self._step(step)
            except (GroupMissingError, DataLossError):
                if not self._losses.allowed:
                    raise
        return self._step(step)

    def _triggered(
        self, server: Server, begin: Offset, limit: int | None, run: RunState
    ) -> tuple[CurrentBatch | None, RunState]:
        """Run a trigger, and start its background jobs."""
        run = self._settled(run)
        with collection_paused():
            opened = self._opened(server, begin, run)
            triggered = self._trigger.next(server, opened, limit, run)
        # Tasks read while the next batch is reserved, and no longer while Spark commits: then entries are acknowledged.
        # So the server always has work.
        if triggered.prefetch is not None:
            self._prefetching = self.worker.submit(triggered.prefetch.work)
        for job in triggered.jobs:
            self.worker.submit(job)
        self._heads = triggered.run.heads
        return None if triggered.end is None else CurrentBatch(
            triggered.end, triggered.parts, is_new=True
        ), triggered.run

    def _opened(self, server: Server, checkpoint: Offset, run: RunState) -> Opened:
        """Open the run if it knows nothing yet, and return where the trigger begins."""
        streams, begin = self._streams, checkpoint
        if not run.is_known:
            begin = self._opening.open(server, checkpoint)
        elif streams.is_match_due():
            self._opening.join(server, checkpoint)
        names = streams.of_trigger(server, begin)
        start = streams.without_unused_returned(run.start_of(begin))
        forgotten = start.at.keys() - {*names} - checkpoint.at.keys()  # of a pattern, and missing: Spark logged none
        return Opened(checkpoint, start.without(forgotten), names)

    def _settled(self, run: RunState) -> RunState:
        """Wait for the background jobs. Return what this run knows then."""
        reserving, self._prefetching = self._prefetching, None
        try:
            self.worker.wait()
        except StreamStateError:
            # A stream or group is missing: the following steps decide what to do about it.
            return run.unknown()
        prefetched = None if reserving is None else reserving.result()
        return replace(run, prefetched=prefetched) if isinstance(prefetched, Reserved) and run.is_known else run

    def _first(self, server: Server) -> Offset:
        positions = self._opening.first(server)
        at = {stream: StreamOffset(position) for stream, position in positions.items()}
        return Offset(self.member.group, self.member.consumer, at)

    def _until_now(self, server: Server, run: RunState) -> tuple[None, RunState]:
        self._opening.find(server)  # Spark calls this before `first`
        until = stream_states(server, self._streams.until_now(server))
        return None, replace(run, admission=replace(run.admission, until=until))

    def _commit(self, server: Server, end: Offset, run: RunState) -> tuple[None, RunState]:
        run = self._settled(run)
        settled, _ = self._acknowledging.acknowledge(server, end, run)
        # The next trigger finds what was reserved ahead in the pending list.
        return None, settled if run.prefetched is None else run.unknown()

    def _require_groups(self, server: Server, begin: Offset, end: Offset) -> None:
        """Raise GroupMissingError or DataLossError for the first missing group of a batch. The message names the
        command that creates it where the batch begins."""
        heads, states = fetch_state(server, self.member, end.streams)
        for stream, state in states.items():
            if state is None:
                raise missing(server, self.member, stream, not heads[stream].exists, begin[stream])

    def _count_attempt(self, server: Server, begin: Offset, end: Offset, run: RunState) -> tuple[bool, RunState]:
        """Count this run's attempt at a batch. After too many attempts its entries are set aside. Return whether the
        batch was cut."""
        self._streams.hold(server, end.streams)
        try:
            is_cut, poison_cache = self._poison.attempt(server, begin, end, run.poison)
        except (GroupMissingError, DataLossError):
            if not self._losses.allowed:
                raise
            _, states = fetch_state(server, self.member, end.streams)
            missing_groups = [stream for stream, state in states.items() if state is None]
            is_cut, poison_cache = self._poison.attempt(server, begin, end, CachedPoisonState(), missing_groups)
        return is_cut, replace(run, poison=poison_cache)

    def _read_again(self, server: Server, begin: Offset, batch: CurrentBatch) -> CurrentBatch:
        """Return a batch that an earlier run has created, with what its tasks read."""
        end = batch.end
        self._streams.hold(server, end.streams)
        replay = Replay(server, self.member, self._losses, self._run.admission.size, self._limits)
        replay.require_newest(begin, end)
        parts = [] if batch.is_cut else replay.parts(end)
        noted = keep_due_notes(server, self.member, end, parts, self._limits)
        if batch.is_cut:  # what the pieces of it lack is counted with them
            delete_missing(server, self.member, end.streams)
        return replace(batch, parts=parts, noted=noted)

    def _dead_letter(self, entries: DeadEntries) -> None:
        """Write entries that were delivered too often to the dead-letter stream."""
        to = self._options.dead_letter_stream
        assert to is not None  # maxDeliveries needs it
        posted, deleted = dead_letter(self._server.get(), self.member.group, entries, to, self._limits.dead_letters)
        self._removing.dead_lettered(self._server.get(), entries.stream)
        self.counters.entries(DEAD)[origin_of(entries.stream)] += posted
        if deleted:
            above = min(entries.ids).previous()
            finding = Finding(Kind.ENTRIES_LOST, entries.stream, above=above, lost=deleted, is_harmless=True)
            # They cannot become dead letters any more, and are acknowledged.
            self._losses.report(replace(finding, detail="before they became dead letters"))

    def _check_owner(self, offset: Offset) -> None:
        """Raise OffsetError if an offset belongs to another group or consumer: the query must not read or acknowledge
        their pending entries."""
        if (offset.group, offset.consumer) != (self.member.group, self.member.consumer):
            raise OffsetError(
                f"the checkpoint belongs to consumer {offset.consumer!r} of group {offset.group!r}, and the query is "
                f"consumer {self.member.consumer!r} of group {self.member.group!r}: set these options back. "
                "(With a new checkpoint the query begins where its group stands; a new group begins at startingOffsets)"
            )


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """Pause the collector of this process, if it runs.

    A trigger over 10,000 streams makes some 300,000 small values, none of which refers to itself. The collector would
    search them, and everything else in the process, twice in vain: a quarter of the trigger.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
