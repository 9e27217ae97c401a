"""The driver's side of a query, independent of Spark: the calls that Spark makes to a streaming source.

A micro-batch is exactly the entries that are pending for the query's consumer in the ranges of its offset (see
source.offset). If the group is a bookmark (trigger.roles), it is the range itself. Spark calls `next(start)` only with
a start that is in its commit log (docs/internals/facts.md, S4). So the query may acknowledge entries up to there.

State in this process (trigger.run_state) only saves work: the offset and the server have all that a restart needs.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from spark_streams.connector.counters import LOST
from spark_streams.connector.errors import DataLossError, GroupMissingError, OffsetError
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.source.group.begin import Opening, require_entry_counts, require_no_eviction
from spark_streams.connector.source.group.recovery import DataLoss, MessageContext, RunCounters
from spark_streams.connector.source.group.snapshot import missing, streams_without_group
from spark_streams.connector.source.group.streams import StreamSet
from spark_streams.connector.source.group_client import GroupClient, Membership
from spark_streams.connector.source.limits import LIMITS, Limits
from spark_streams.connector.source.offset import Offset, StreamOffset
from spark_streams.connector.source.partitioning import Plan
from spark_streams.connector.source.pending.claim import Claims, DeadLetterWriter
from spark_streams.connector.source.pending.poison_batch import PoisonBatch
from spark_streams.connector.source.query.planning import CurrentBatch, Planning
from spark_streams.connector.source.query.triggering import BackgroundWorker, Idle, RunSteps, Triggering
from spark_streams.connector.source.quota import Pacing
from spark_streams.connector.source.trigger.acknowledge import Acknowledging, Removing
from spark_streams.connector.source.trigger.batch_contents import ContentsChooser
from spark_streams.connector.source.trigger.bookmark import Bookmarked
from spark_streams.connector.source.trigger.observe import Observer
from spark_streams.connector.source.trigger.roles import GroupRole
from spark_streams.connector.source.trigger.run_state import Admission, RunState
from spark_streams.connector.source.trigger.trigger import Trigger
from spark_streams.connector.wire.connect import RoleCheck
from spark_streams.connector.wire.connection import Server
from spark_streams.connector.wire.session import Session
from spark_streams.connector.wire.xinfo import StreamState, stream_states

T = TypeVar("T")


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
        member = Membership(options.group, options.consumer)
        place = MessageContext(member, str(options.address), options.address.forgets)
        losses = self._losses = DataLoss(not options.fail_on_data_loss, place, self.counters.entries(LOST))
        streams = self._streams = StreamSet(options, now, limits)
        self._opening = Opening(options, streams)
        removing = self._removing = Removing(options, streams.retries, now)
        dead_letters = DeadLetterWriter(options, losses, self.counters, limits, removing.dead_lettered)
        poison = PoisonBatch(options.max_deliveries, self.run_name, dead_letters, losses)
        role = GroupRole() if options.has_pending_list else Bookmarked(options.ordered)
        acks = Acknowledging(options, losses, self.counters, removing, poison, role)
        claims = Claims(options, streams, losses, self.counters, dead_letters)
        contents = ContentsChooser(options, poison, role)
        observer = Observer(role, streams, losses, acks)
        trigger = Trigger(options, observer, contents, claims, acks, now)
        self._triggering = Triggering(self._opening, streams, trigger, acks, self.worker)
        self._idle = Idle(options.address, now, limits)
        self._role = RoleCheck(now, limits.role_check)
        self._is_idle = False
        self._now = now
        run = RunState(is_known=False, admission=Admission.of_options(options, first_at_once))
        self._steps = RunSteps(self._server, member, limits, losses, run)
        self._planning = Planning(options, self._steps, streams, poison, losses)
        self._pacing = Pacing(options.target_batch_time, now)
        self._heads: Mapping[str, StreamState] = {}  # of the last trigger, for reports
        self._reported_heads: Mapping[str, StreamState] | None = None  # those of the last report
        self._reported_ends: Mapping[str, object] = {}  # their JSON form

    def _greet(self, server: Server) -> None:
        """Refuse a server on which the query could lose entries without noticing."""
        require_entry_counts(server)
        require_no_eviction(server, self._options)

    @property
    def member(self) -> Membership:
        return self._streams.member

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams that the query reads, without those of returned entries."""
        return self._streams.names

    @property
    def knows_fields(self) -> bool:
        """Whether the query knows which declared columns no entry has. Then tasks need not find out."""
        return self._steps.run.knows_fields

    # -- calls of Spark ------------------------------------------------------------------------------------------

    def trust_address(self) -> None:
        """Wait for the server if it does not answer: it has answered an earlier run at this address."""
        self._server.trust()

    def first(self) -> Offset:
        """Return the first offset of a query without a checkpoint. A second call returns the same (S2)."""
        return self._steps.take_again(self._first)

    def until_now(self) -> None:
        """End the run at the present last entries of the streams (AvailableNow)."""
        self._steps.take(self._until_now)

    def open_groups(self, begin: Offset, existing: Sequence[str], question: Callable[[GroupClient], T]) -> T:
        """Create the groups where the query begins, hold the lease, and ask a question, without reading an entry.
        existing: streams that must have the group, unless losses are allowed. Raises GroupMissingError."""
        self._check_owner(begin)
        return self._steps.ask(partial(self._open_and_ask, begin=begin, existing=existing, question=question))

    def ask(self, question: Callable[[GroupClient], T]) -> T:
        """Ask the server a question, without reading an entry."""
        return self._steps.ask(question)

    def hold(self) -> None:
        """Hold the lease without reading an entry, after `open_groups`."""
        self._steps.ask(partial(self._streams.hold, streams=()))

    def next(self, begin: Offset, limit: int | None) -> Offset | None:
        """Reserve the next batch and return its end; None: there is none. What ends at `begin` is acknowledged."""
        self._check_owner(begin)
        self._server.renew_login()
        if self._role.is_due():
            self._steps.ask(self._require_master)
        self._pacing.called()
        was_idle, self._is_idle = self._is_idle, False
        if was_idle and self._idle.lasts(begin) and not self._steps.ask(self._streams.has_changed):
            self._is_idle = True
            return None
        has_acknowledged = self._steps.run.has_acknowledged(begin)
        limit = self._pacing.limit(begin.held, limit)
        result = self._steps.take_again(partial(self._triggering.next, checkpoint=begin, limit=limit))
        self._heads = result.run.heads
        if result.end is None:
            if not was_idle:
                self._idle.batch_ran()
            if (
                has_acknowledged
            ):  # otherwise this trigger has acknowledged a batch, and the next one must see the result
                last = {stream: head.last for stream, head in self._heads.items()}
                self._idle.begin(begin, last, self._seconds_until_due())
                self._is_idle = True
            return None
        self._planning.current = CurrentBatch(result.end, result.parts, is_new=True)
        self._pacing.planned(result.end.held)
        return result.end

    def plan(self, begin: Offset, end: Offset) -> Plan:
        """Return the tasks of a batch. After a restart the pending list has the batch's entries (S5)."""
        self._check_owner(begin)
        self._check_owner(end)
        if begin == end:
            return Plan([], narrowed=False)
        return self._planning.plan(begin, end)

    def commit(self, end: Offset) -> None:
        """Spark has committed a batch (S3). Acknowledge it if this run has planned it and `next` has not yet. Nothing
        depends on this call: Spark calls it late, or never."""
        self._check_owner(end)
        if self._is_idle:
            self._idle.batch_ran()
        current = self._planning.current
        is_ours = current is not None and current.end == end
        if is_ours and not self._steps.run.has_acknowledged(end):
            try:
                self._steps.take(partial(self._triggering.commit, end=end))
            except (GroupMissingError, DataLossError):
                # A stream or group has vanished. The next trigger reports the loss, and acknowledges the rest.
                if not self._losses.allowed:
                    raise

    def reported(self) -> dict[str, object]:
        """Return the ends of the streams, what this run has counted, and the limit of the last batch by its time."""
        if self._reported_heads is not self._heads:  # Spark asks an idle query five times a second
            ends = {stream: state.last for stream, state in self._heads.items()}
            self._reported_heads = self._heads
            at = {stream: StreamOffset(end) for stream, end in ends.items()}
            self._reported_ends = Offset(self.member.group, self.member.consumer, at).to_json()
        waiting = self._streams.retries.waiting()
        waits = {"waiting": waiting} if waiting else {}
        return {**self._reported_ends, **self.counters.to_json(), **waits, **self._pacing.to_json()}

    def stop(self) -> None:
        """Release the lease and close the connections."""
        self.worker.close()
        self._streams.release()
        self._idle.close()
        self._server.close()

    def _seconds_until_due(self) -> float:
        """Return how long an idle query need not ask the server if no stream gets an entry. 0: it asks each time."""
        limits = self._limits
        if self._steps.run.admission.until is not None or not limits.idle_check:
            return 0.0
        due = [
            max(limits.idle_check, limits.idle_check_each * len(self._heads)),
            self._steps.run.admission.seconds_until_due(self._now()),
            self._streams.retries.seconds_until_due(),
            self._removing.seconds_until_due(),
        ]
        if self._steps.run.others_have_pending:
            due.append(limits.idle_check if self._options.claim_idle is None else self._options.claim_idle / 10_000)
        return max(0.0, min(due))

    # -- steps ---------------------------------------------------------------------------------------------------

    def _require_master(self, client: GroupClient) -> None:
        self._role.require_master(client.server)

    def _first(self, client: GroupClient, run: RunState) -> tuple[Offset, RunState]:
        positions = self._opening.first(client)
        at = {stream: StreamOffset(position) for stream, position in positions.items()}
        return Offset(client.group, client.consumer, at, left=frozenset(at)), run

    def _open_and_ask(
        self, client: GroupClient, begin: Offset, existing: Sequence[str], question: Callable[[GroupClient], T]
    ) -> T:
        for stream in () if self._losses.allowed else streams_without_group(client, existing):
            raise missing(client, stream, stream_too=False)
        self._triggering.opened(client, begin, RunState(is_known=False))
        return question(client)

    def _until_now(self, client: GroupClient, run: RunState) -> tuple[None, RunState]:
        self._opening.find(client)  # Spark calls this before `first`
        until = stream_states(client.server, self._streams.until_now(client))
        return None, replace(run, admission=replace(run.admission, until=until))

    def _check_owner(self, offset: Offset) -> None:
        """Raise OffsetError for an offset of another owner: the query must not touch their pending entries."""
        if (offset.group, offset.consumer) != (self.member.group, self.member.consumer):
            raise OffsetError(
                f"the checkpoint belongs to consumer {offset.consumer!r} of group {offset.group!r}, and the query is "
                f"consumer {self.member.consumer!r} of group {self.member.group!r}: set these options back. "
                "(With a new checkpoint the query begins where its group stands; a new group begins at startingOffsets)"
            )
