"""The plan of a batch: which entries its tasks read. Spark asks for it after it has logged the batch's offset, and
again for each action on the batch.

A batch that this run has made is known. For one that an earlier run has made, the server is asked (replayed_batch.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from spark_streams.connector.errors import DataLossError, GroupMissingError
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.source.group.admin import begin_batches
from spark_streams.connector.source.group.remedies import DataLoss
from spark_streams.connector.source.group.state import fetch_state, missing
from spark_streams.connector.source.group.stream_set import StreamSet
from spark_streams.connector.source.limits import Limits
from spark_streams.connector.source.membership import Membership
from spark_streams.connector.source.offset import Offset
from spark_streams.connector.source.part import Part
from spark_streams.connector.source.partitioning import Plan, divide_into_tasks
from spark_streams.connector.source.pending.poison_batch import PoisonBatch
from spark_streams.connector.source.pending.poison_record import CachedPoisonState
from spark_streams.connector.source.query.replayed_batch import ReplayedBatch
from spark_streams.connector.source.query.steps import Steps
from spark_streams.connector.source.task.notes import delete_missing, keep_due_notes, open_notes
from spark_streams.connector.source.trigger.run_state import RunState
from spark_streams.connector.wire.connection.server import Server


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


class Planning:
    """Plans the batches of one run. current: the batch that Spark is running; None: none yet."""

    def __init__(
        self,
        options: SourceOptions,
        steps: Steps,
        streams: StreamSet,
        poison: PoisonBatch,
        losses: DataLoss,
        limits: Limits,
    ) -> None:
        self._options = options
        self._steps = steps
        self._streams = streams
        self._poison = poison
        self._losses = losses
        self._limits = limits
        self.current: CurrentBatch | None = None

    @property
    def _member(self) -> Membership:
        return self._streams.member

    def plan(self, begin: Offset, end: Offset) -> Plan:
        """Return the tasks of a batch. After a restart the pending list has the batch's entries (S5)."""
        batch = self.current
        if batch is None or batch.end != end:
            batch = CurrentBatch(end)
        try:
            if not batch.is_counted and not (batch.is_new and not end.record):
                # Once per run: Spark plans a batch again for each action on it. An earlier run may have cut its batch,
                # whether or not maxDeliveries is set now.
                is_cut = self._steps.take(lambda server, run: self._count_attempt(server, begin, end, run))
                batch = self.current = replace(batch, is_cut=is_cut, is_counted=True)
            if first := begun_with(begin, end):
                self._steps.ask(lambda server: begin_batches(server, self._member, end, first))
            if batch.parts is None:
                again = batch
                batch = self.current = self._steps.ask(lambda server: self._read_again(server, begin, again))
            parts = batch.parts or []
        except GroupMissingError:
            self._steps.ask(lambda server: self._require_groups(server, begin, end))
            raise
        if end.notes and not batch.is_opened:  # once per run: later calls would hide that the key was deleted
            self._steps.ask(lambda server: open_notes(server, self._member, end))
            self.current = replace(batch, is_opened=True)
        run = self._steps.run
        size = run.admission.size([part.count for part in parts])
        # If earlier runs wrote rows that this batch does not have, other batches have these rows. Those batches are
        # still to come while entries are set aside.
        planned = divide_into_tasks(parts, size, self._options.ordered, self._limits)
        is_lossy = not batch.is_cut and sum(task.count for task in planned) < end.held
        return Plan.of_tasks(planned, batch.is_cut or bool(run.poison.streams), is_lossy, batch.noted)

    def _count_attempt(self, server: Server, begin: Offset, end: Offset, run: RunState) -> tuple[bool, RunState]:
        """Count this run's attempt at a batch. After too many attempts its entries are set aside. Return whether the
        batch was cut."""
        self._streams.hold(server, end.streams)
        try:
            is_cut, poison_cache = self._poison.attempt(server, begin, end, run.poison)
        except (GroupMissingError, DataLossError):
            if not self._losses.allowed:
                raise
            _, states = fetch_state(server, self._member, end.streams)
            missing_groups = [stream for stream, state in states.items() if state is None]
            is_cut, poison_cache = self._poison.attempt(server, begin, end, CachedPoisonState(), missing_groups)
        return is_cut, replace(run, poison=poison_cache)

    def _read_again(self, server: Server, begin: Offset, batch: CurrentBatch) -> CurrentBatch:
        """Return a batch that an earlier run has created, with what its tasks read."""
        end = batch.end
        self._streams.hold(server, end.streams)
        size = self._steps.run.admission.size
        replayed = ReplayedBatch(server, self._member, not self._losses.allowed, size, self._limits)
        parts, findings = replayed.read(begin, end, batch.is_cut)
        self._losses.report(*findings)
        noted = keep_due_notes(server, self._member, end, parts, self._limits)
        if batch.is_cut:  # what the pieces of it lack is counted with them
            delete_missing(server, self._member, end.streams)
        return replace(batch, parts=parts, noted=noted)

    def _require_groups(self, server: Server, begin: Offset, end: Offset) -> None:
        """Raise GroupMissingError or DataLossError for the first missing group of a batch. The message names the
        command that creates it where the batch begins."""
        heads, states = fetch_state(server, self._member, end.streams)
        for stream, state in states.items():
            if state is None:
                raise missing(server, self._member, stream, not heads[stream].exists, begin[stream])


def begun_with(begin: Offset, end: Offset) -> list[str]:
    """Return the streams whose account Spark has logged with this batch for the first time: it is their first batch, or
    it keeps a correction."""
    taken_from = {*end.taken_from}
    return [
        stream
        for stream, at in end.at.items()
        if (at.number == 1 and stream in taken_from) or (at.number == 0 and _read_of(begin, stream) != at.read)
    ]


def _read_of(offset: Offset, stream: str) -> int | None:
    return offset.at[stream].read if stream in offset.at else None
