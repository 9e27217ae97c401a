"""The plan of a batch: which entries its tasks read. Spark asks for it after it has logged the batch's offset, and
again for each action on the batch.

A batch that this run has made is known. One that an earlier run has made is replayed: the server is asked for the
entries that its offset names (FACTS S5).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from spark_streams.base.ids import MIN_ID
from spark_streams.connector.errors import DataLossError, GroupMissingError
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.source.commit_mark import Mark
from spark_streams.connector.source.group.compare import NOTHING_ABOVE, at_position, compare
from spark_streams.connector.source.group.recovery import DataLoss, Finding, Kind, entries_lost
from spark_streams.connector.source.group.snapshot import StreamSnapshot, fetch_snapshots, fetch_state, require_groups
from spark_streams.connector.source.group.streams import StreamSet
from spark_streams.connector.source.group_client import GroupClient
from spark_streams.connector.source.offset import Offset, Range, StreamOffset
from spark_streams.connector.source.partitioning import ALL, Part, Plan, Task, divide_into_tasks, pending_parts
from spark_streams.connector.source.pending.poison_batch import PoisonBatch
from spark_streams.connector.source.pending_list import pending_ranges
from spark_streams.connector.source.query.triggering import RunSteps
from spark_streams.connector.source.settled import Standing
from spark_streams.connector.source.task.notes import delete_missing, keep_due_notes, open_notes
from spark_streams.connector.source.trigger.run_state import RunState

# If a stream shows one of these, the batch of the offset is not the one that the server has.
_OTHER_BATCH = {Kind.STREAM_MISSING, Kind.STREAM_REPLACED, Kind.CHECKPOINT_OLDER, Kind.SERVER_RESTORED}


@dataclass(frozen=True)
class ReplayedBatch:
    """A batch that an earlier run has made."""

    client: GroupClient
    is_strict: bool  # an error is raised for what is lost (failOnDataLoss)
    size: Callable[[Sequence[int]], int]  # entries a task, for a batch of so many

    def read(self, begin: Offset, end: Offset, is_cut: bool) -> tuple[list[Part], list[Finding]]:
        """Return what tasks read of the batch, old entries first, and what is lost. If the server does not have the
        batch any more, or the checkpoint is an older copy, a strict query reads nothing. is_cut: the entries were set
        aside, so its tasks read none. Raises GroupMissingError, DataLossError."""
        snapshots = fetch_snapshots(self.client, end.taken_from)
        wrong = [
            finding
            for s, snapshot in snapshots.items()
            if (finding := self._compared(s, begin, end, snapshot)) is not None
        ]
        older = [replace(finding, lost=0) for finding in wrong if finding.kind is Kind.CHECKPOINT_OLDER]
        if is_cut or (wrong and self.is_strict):
            return [], wrong if self.is_strict else older
        old = [entries for stream in end.taken_from for entries in end.old.get(stream, ())]
        new = [end.new[stream] for stream in end.taken_from if stream in end.new]
        read = [*map(self._pending, old), *(self._new(entries, end, snapshots[entries.stream]) for entries in new)]
        lost = [finding for _, finding in read if finding is not None]
        return [part for parts, _ in read for part in parts], [*older, *lost]

    def _compared(self, stream: str, begin: Offset, end: Offset, snapshot: StreamSnapshot) -> Finding | None:
        """Return what says that the server does not have this batch, as a fresh batch is compared with its position at
        the end of this one. If the commit mark knows this batch, only Spark's commit log has lost it: it is read again.
        For a first batch Spark passes where the query would begin now (S2): that is no part of the checkpoint."""
        at = end.at[stream]
        if not end.pending(stream):  # without a pending list, the group is no part of the batch
            snapshot = snapshot._replace(mark=at.mark, group=snapshot.group and at_position(at, snapshot.group))
        is_known = snapshot.mark == at.mark or not begin.token or stream not in begin.at
        if not is_known and Standing(begin.at[stream], snapshot.mark).is_older:
            at = begin.at[stream]
        finding = compare(stream, at, snapshot, NOTHING_ABOVE)
        if finding is None or finding.kind not in _OTHER_BATCH:
            return None
        # The batch is read again whatever the group's position is, so the query goes on at its end.
        return replace(finding, above=end[stream])

    def _new(self, entries: Range, end: Offset, snapshot: StreamSnapshot) -> tuple[list[Part], Finding | None]:
        """Return what is read of a range. If the query is alone, and was, the stream itself has the batch, whatever has
        become of the pending list. Others may have claimed entries of it, unless they were acknowledged with it. What
        was released (XNACK) is nobody's: the whole batch is read."""
        if not end.pending(entries.stream):
            return [Part(entries, ALL)], None
        others = snapshot.group is not None and snapshot.group.others
        if (others and snapshot.mark != end.at[entries.stream].mark) or end.at[entries.stream].read is None:
            return self._pending(entries)
        found = self._still_pending(entries, spare=True)
        if sum(pending.count for pending in found) == entries.count:
            return pending_parts(found), None
        return [Part(entries, ALL)], None

    def _pending(self, entries: Range) -> tuple[list[Part], Finding | None]:
        """Return what is pending of a range, and a finding if some is not."""
        found = self._still_pending(entries, spare=False)
        missing = entries.count - sum(pending.count for pending in found)
        finding = None
        if missing > 0:
            detail = f"of a batch of {entries.count}"
            finding = entries_lost(entries.stream, missing, entries.after, detail, entries.last)
        return pending_parts(found), finding

    def _still_pending(self, entries: Range, spare: bool) -> list[Range]:
        """Return the entries that are still pending. If the group is missing, raise GroupMissingError or DataLossError,
        unless losses are allowed or the stream has the entries (`spare`)."""
        try:
            return pending_ranges(self.client, [entries], self.size([entries.count]))
        except (GroupMissingError, DataLossError):
            if not spare and self.is_strict:
                raise
            return []


@dataclass(frozen=True)
class CurrentBatch:
    """The batch that Spark is running."""

    end: Offset  # its offset, whose token names the batch
    parts: list[Part] | None = None  # its entries; None: not known yet
    is_new: bool = False  # this run has created the batch
    is_counted: bool = False  # this run's attempt at it was counted (maxDeliveries)
    is_opened: bool = False  # this run has created the key for the notes of its tasks (source.task.notes)
    is_cut: bool = False  # entries of it were set aside (source.pending.poison_batch)
    narrowed: bool = False  # the same, or entries of batches before it are
    noted: frozenset[str] = frozenset()  # see Plan


@dataclass
class Planning:
    """Plans the batches of one run."""

    options: SourceOptions
    steps: RunSteps
    streams: StreamSet
    poison: PoisonBatch
    losses: DataLoss
    current: CurrentBatch | None = None  # the batch that Spark is running

    def plan(self, begin: Offset, end: Offset) -> Plan:
        """Return the tasks of a batch. After a restart the pending list has the batch's entries (S5)."""
        batch = self.current
        if batch is None or batch.end != end:
            batch = CurrentBatch(end)
        try:
            if not batch.is_counted and not (batch.is_new and not end.record):
                # Once per run: Spark plans a batch again for each action on it. An earlier run may have cut its batch,
                # whether or not maxDeliveries is set now.
                batch = self.current = self.steps.take_again(partial(self._count_attempt, begin=begin, batch=batch))
            if first := begun_with(begin, end):
                self.steps.ask(partial(begin_batches, end=end, first=first))
            if batch.parts is None:
                batch = self.current = self.steps.ask(partial(self._replayed, begin=begin, batch=batch))
            parts = batch.parts or []
        except GroupMissingError:
            # The error of the first missing group names the command that creates it where the batch begins.
            self.steps.ask(lambda client: require_groups(client, *fetch_state(client, end.streams), logged=begin))
            raise
        if end.notes and not batch.is_opened:  # once per run: later calls would hide that the key was deleted
            self.steps.ask(partial(open_notes, end=end))
            self.current = replace(batch, is_opened=True)
        size = self.steps.run.admission.size([part.count for part in parts])
        # While entries are set aside, rows of earlier runs that this batch does not have are those of batches to come.
        planned = divide_into_tasks(parts, size, self.options.ordered, self.steps.limits)
        is_lossy = not batch.is_cut and sum(task.count for task in planned) < end.held
        # At least one task reports to the sink that the batch is narrowed.
        return Plan(planned if planned or not batch.narrowed else [Task(())], batch.narrowed, is_lossy, batch.noted)

    def _count_attempt(
        self, client: GroupClient, run: RunState, begin: Offset, batch: CurrentBatch
    ) -> tuple[CurrentBatch, RunState]:
        """Count this run's attempt at a batch. After too many its entries are set aside. Return the batch with that."""
        end = batch.end
        self.streams.hold_batch(client, end)
        is_cut, poison_cache = self.poison.attempt(client, begin, end, run.poison)
        narrowed = is_cut or bool(poison_cache.streams)
        run = replace(run, poison=poison_cache, given="" if narrowed else end.token, cut=end.token if is_cut else "")
        return replace(batch, is_cut=is_cut, narrowed=narrowed, is_counted=True), run

    def _replayed(self, client: GroupClient, begin: Offset, batch: CurrentBatch) -> CurrentBatch:
        end = batch.end
        self.streams.hold_batch(client, end)
        size = self.steps.run.admission.size
        replayed = ReplayedBatch(client, not self.losses.allowed, size)
        parts, findings = replayed.read(begin, end, batch.is_cut)
        self.losses.report(*findings)
        noted = keep_due_notes(client, end, parts)
        if batch.is_cut:  # what the pieces of it lack is counted with them
            delete_missing(client, end.streams)
        return replace(batch, parts=parts, noted=noted)


def begun_with(begin: Offset, end: Offset) -> list[str]:
    """Return the streams whose account Spark has logged with this batch for the first time, or with a correction."""
    taken_from, unknown = {*end.taken_from}, StreamOffset(MIN_ID)
    return [
        stream
        for stream, at in end.at.items()
        if (at.number == 1 and stream in taken_from)
        or (at.number == 0 and begin.at.get(stream, unknown).read != at.read)
    ]


def begin_batches(client: GroupClient, end: Offset, first: Sequence[str]) -> None:
    """Replace the marks of a begin, or of `rstream groups seek`, above which this batch has read: Spark has logged it,
    and the query may now be killed while it acknowledges the batch. The mark of a seek would then move it back, and to
    a new checkpoint the mark of a begin would prove that nothing is acknowledged, or that losses of this batch are not
    counted. first: streams whose first batch it is, or whose account it may correct."""
    keys = [client.mark_key(stream) for stream in first]
    begun: list[tuple[bytes, Mark]] = []
    for stream, key, value in zip(first, keys, client.server.execute_all([("GET", key) for key in keys]), strict=True):
        mark = Mark.parse(value)
        at = end.at[stream]
        is_of_batch = mark is not None and any(part.after == mark.id for part in end.ranges(stream))
        is_known = mark is not None and (at.number > 0 or mark.read_at_begin != at.read)
        if mark is not None and ((mark.is_begin and is_known) or (mark.is_seek and is_of_batch)):
            begun.append((key, Mark.of_first_batch(mark.id, end.token)))
    client.server.execute_all([("SET", key, str(mark)) for key, mark in begun])
