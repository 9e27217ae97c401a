"""Streaming reader that Spark calls: on the driver it plans micro-batches, in a task it reads entries.

It has only Spark's part: offsets as JSON, read limits, partitions. The batches are in query.batch_stream.

A reader that cannot be created has another one in its place (RefusedReader). If `streamReader()` raises, Spark's runner
raises an UnboundLocalError of its own, which hides the cause. So the first method that Spark calls raises the error.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from spark_streams.base.printable import printable
from spark_streams.connector import keys
from spark_streams.connector.errors import RStreamError, ServerUnreachableError, UnsupportedError
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.source import stream_names
from spark_streams.connector.source.commit_mark import NO_PENDING_LIST
from spark_streams.connector.source.group_client import Membership
from spark_streams.connector.source.limits import LIMITS, Limits
from spark_streams.connector.source.offset import Offset, Range
from spark_streams.connector.source.partitioning import Task
from spark_streams.connector.source.pending.poison_record import attempt_key_of, note_attempt
from spark_streams.connector.source.query.batch_stream import MicroBatchStream
from spark_streams.connector.source.rows.column_report import STREAM_MODES, ColumnReport, ColumnWarnings
from spark_streams.connector.source.rows.columns import Columns, Dead
from spark_streams.connector.source.task.notes import NoteWriter, write_missing
from spark_streams.connector.source.task.read_partition import TaskCallbacks, read_task
from spark_streams.connector.spark import data_source
from spark_streams.connector.spark.arrow import rows_for_spark
from spark_streams.connector.spark.worker import SameVersion, micro_batch, set_up_source_process
from spark_streams.connector.wire.connection import Server
from spark_streams.connector.wire.session import Session

_log = logging.getLogger("spark_streams.source")


class RefusedReader(DataSourceStreamReader, data_source.SupportsTriggerAvailableNow):
    """Raises the same error from each method."""

    def __init__(self, error: RStreamError) -> None:
        self._error = error

    def _refuse(self) -> NoReturn:
        raise self._error.with_traceback(None) from None

    def getDefaultReadLimit(self) -> data_source.ReadLimit:
        self._refuse()

    def prepareForTriggerAvailableNow(self) -> None:
        self._refuse()

    def initialOffset(self) -> dict[str, object]:
        self._refuse()

    def latestOffset(self, start: dict[str, object], limit: data_source.ReadLimit) -> dict[str, object]:
        self._refuse()

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> Sequence[InputPartition]:
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        self._refuse()


# Spark ignores every limit if, and only if, the trigger is once=True, so there is always one.
UNLIMITED = 1 << 62
_CACHED_OFFSETS = 4  # offsets that are not parsed again when Spark passes them
_KIND_MILLISECONDS = 7 * 86_400_000


@dataclass(frozen=True)
class TaskBatch:
    """Micro-batch of a task."""

    token: str  # name of the batch
    run: str  # name of the query's run
    narrowed: bool  # it is a piece of a failed batch
    lossy: bool  # it has fewer entries than its offset says
    tasks: int  # number of its tasks
    notes_stream: str  # stream whose notes hash has the notes on columns
    reports_absent: bool  # these notes name columns that no entry has a field for
    noted: frozenset[str]  # see Plan
    attempt_key: bytes | None  # key under which Spark's name of the batch is noted; None: attempts are not counted


class EntriesPartition(InputPartition):
    """Part of a micro-batch that one task reads."""

    def __init__(self, task: Task, batch: TaskBatch) -> None:
        super().__init__(task)
        self.task = task
        self.batch = batch


class StreamReader(SameVersion, DataSourceStreamReader, data_source.SupportsTriggerAvailableNow):
    """format("rstream") for readStream. One object lives on the driver for the whole run of a query (FACTS S1).

    now: a monotonic clock, in seconds; batch: returns the current micro-batch."""

    def __init__(
        self,
        options: SourceOptions,
        columns: Columns,
        now: Callable[[], float] = time.monotonic,
        limits: Limits = LIMITS,
        batch: Callable[[], keys.MicroBatchName | None] = micro_batch,
        first_at_once: bool = False,
    ) -> None:
        """first_at_once: the first trigger does not wait for minEntriesPerTrigger: Spark may end the run after it."""
        self._first_at_once = first_at_once
        self._commit_calls: data_source.CommitCalls | None = None  # None: the calls are not checked
        self._options = options
        self._now = now
        self._limits = limits
        self._batch = batch
        self._columns = columns
        self._sharded_options = options
        self._has_checked_shards = False
        self._batches: MicroBatchStream | None = None
        self._cached_offsets: list[tuple[dict[str, object], Offset]] = []
        self._must_fix_end = False  # of a run with trigger(availableNow=True)
        self._error: RStreamError | None = None  # of its preparation

    def __getstate__(self) -> dict[str, object]:
        """Return the state for tasks: options and columns. Connections and batches stay on the driver."""
        return {**self.__dict__, "_batches": None, "_cached_offsets": []}

    # -- on the driver -----------------------------------------------------------------------------------------

    def check_commit_calls(self) -> None:
        """Refuse a Spark that does not commit each batch before it plans the next one."""
        self._commit_calls = data_source.CommitCalls()

    @property
    def batches(self) -> MicroBatchStream:
        """The query's batches, created on first use. Only the driver's copy of the reader has them."""
        return self._batches_for(is_known=False)

    def _batches_for(self, is_known: bool) -> MicroBatchStream:
        """Return the batches. is_known: the server has answered before, so an unreachable server is waited for."""
        if self._batches is None:
            set_up_source_process()
            self._sharded_options = self._options
            if self._options.streams is not None:
                with self._lookup_session(is_known) as session:
                    looking = partial(stream_names.with_shards, options=self._options, count=self._options.shards)
                    self._sharded_options = session.run(looking)
            self._batches = MicroBatchStream(
                self._sharded_options, self._now, limits=self._limits, first_at_once=self._first_at_once
            )
        return self._batches

    @property
    def resolved_options(self) -> SourceOptions:
        """The options, with the names of shards in place of their streams."""
        return self._sharded_options

    def batches_from(self, start: dict[str, object]) -> tuple[MicroBatchStream, Offset]:
        """Return the query's batches, and an offset that Spark passes. Raises OffsetError."""
        begin = self._offset(start)
        return self._ready_batches(begin), begin

    def _lookup_session(self, is_known: bool) -> Session:
        return Session(self._options.address, f"looking for the streams of group {self._options.group!r}", is_known)

    def initialOffset(self) -> dict[str, object]:
        first = self._ready_batches().first().to_json()
        if self._sharded_options.streams is not None:
            with self._lookup_session(is_known=True) as session:
                session.run(partial(stream_names.require_not_in_shards_since, sharded_options=self._sharded_options))
        return first

    def getDefaultReadLimit(self) -> data_source.ReadLimit:
        return data_source.ReadMaxRows(self._options.max_entries_per_trigger.otherwise or UNLIMITED)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the run. This call does not fail: Spark would then stop no source of the query (S98). The next
        call raises the error. If the server was unreachable, it tries again."""
        self._must_fix_end = True
        try:
            self._ready_batches()
        except ServerUnreachableError:
            pass
        except RStreamError as error:
            self._error = error

    def latestOffset(self, start: dict[str, object], limit: data_source.ReadLimit) -> dict[str, object]:
        """Return the end of the next batch, or `start` if there is nothing to read."""
        max_entries = (
            limit.max_rows if isinstance(limit, data_source.ReadMaxRows) and limit.max_rows < UNLIMITED else None
        )
        if isinstance(limit, data_source.ReadAllAvailable) and self._options.has_pending_list:
            raise UnsupportedError(
                "trigger(once=True) ends a query without reporting whether its batch was committed. Its entries would "
                "stay pending, and other consumers could claim them. Use trigger(availableNow=True), which reads the "
                f"same entries and acknowledges them (or {NO_PENDING_LIST}=true)"
            )
        if isinstance(limit, data_source.ReadAllAvailable) and self._options.target_batch_time is not None:
            raise UnsupportedError(
                "trigger(once=True) reads everything in one batch, and targetBatchTime limits a batch. Use "
                "trigger(availableNow=True), which makes several batches (or remove targetBatchTime)"
            )
        begin = self._offset(start)
        end = self._ready_batches(begin).next(begin, max_entries)
        if end is None:
            return start
        json = end.to_json()
        self._cache(json, end)
        return json

    def _offset(self, json: dict[str, object]) -> Offset:
        """Return the offset that Spark passes, nearly always a cached one. Raises OffsetError."""
        for cached_json, cached_offset in self._cached_offsets:
            if cached_json == json:
                return cached_offset
        offset = Offset.from_json(json)
        self._cache(json, offset)
        return offset

    def _cache(self, json: dict[str, object], offset: Offset) -> None:
        self._cached_offsets = [*self._cached_offsets[1 - _CACHED_OFFSETS :], (json, offset)]

    def _ready_batches(self, checkpoint: Offset | None = None) -> MicroBatchStream:
        """Return the batches after the end of the run is fixed. With a checkpoint the server is waited for."""
        if self._error is not None:
            raise self._error
        batches = self._batches_for(checkpoint is not None)
        if checkpoint is not None:
            batches.trust_address()
            if not self._has_checked_shards:
                stream_names.require_shards_of(checkpoint.streams, self._options, self._sharded_options)
                self._has_checked_shards = True
        if self._must_fix_end:
            batches.until_now()
            self._must_fix_end = False
        return batches

    def reportLatestOffset(self) -> dict[str, object]:
        return self.batches.reported()

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> Sequence[EntriesPartition]:
        begin, stop = self._offset(start), self._offset(end)
        if self._commit_calls is not None and begin != stop:
            self._commit_calls.plan(begin.token, stop.token)
        plan = self._ready_batches(begin).plan(begin, stop)
        if begin == stop:
            return []
        # If no entry remains, one empty task reports this to the sink.
        tasks = plan.tasks or [Task(())]
        notes_stream, reports_absent = next(iter(stop.taken_from), ""), not self.batches.knows_fields
        attempt_key = None if self._options.max_deliveries is None or not stop.held else attempt_key_of(stop)
        batch = TaskBatch(
            stop.token,
            self.batches.run_name,
            plan.narrowed,
            plan.lossy,
            len(tasks),
            notes_stream,
            reports_absent,
            plan.noted,
            attempt_key,
        )
        without_key = replace(batch, attempt_key=None)  # only the first task notes the attempt
        return [EntriesPartition(task, without_key if index else batch) for index, task in enumerate(tasks)]

    def commit(self, end: dict[str, object]) -> None:
        committed = self._offset(end)
        if self._commit_calls is not None:
            self._commit_calls.committed = committed.token
        self.batches.commit(committed)

    def stop(self) -> None:
        if self._batches is not None:
            self._batches.stop()
            self._batches = None

    # -- in a task ---------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return rows_for_spark(self.read_batches(partition), self._options.arrow_batches)

    def read_batches(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the task's rows. Raises DataLossError, GroupMissingError, ServerError, DecodeError."""
        assert isinstance(partition, EntriesPartition)
        task, batch = partition.task, partition.batch
        member = Membership(self._options.group, self._options.consumer)
        # The driver was connected, so the address is right: an unreachable server is waited for.
        with (
            Session(self._options.address, f"reading for group {member.group!r}", is_known=True) as session,
            # The other session has replies on their way. This one is rarely used. A note may be written twice.
            Session(self._options.address, f"notes of group {member.group!r}", is_known=True) as notes,
        ):
            if self._options.streams_pattern is not None:
                session.run(partial(stream_names.report_pattern, options=self._options, batch=self._batch()))
            if batch.attempt_key is not None:
                query, number = _names_of(self._batch())
                session.run(partial(note_attempt, key=batch.attempt_key, token=batch.token, query=query, batch=number))
            if batch.narrowed:
                session.run(partial(report_batch_kind, kind=keys.NARROWED, batch=self._batch()))
            if batch.lossy:
                session.run(partial(report_batch_kind, kind=keys.LOSSY, batch=self._batch()))
            reports = _TaskReports(notes, self._options, partition, self._batch, self._limits)
            callbacks = TaskCallbacks(reports.lost, reports.unreadable, reports.columns, batch.noted, reports.good)
            fails = self._options.fail_on_data_loss
            yield from read_task(session, member, task, self._columns, callbacks, fails, self._limits)


@dataclass(frozen=True)
class _TaskReports:
    """What one task reports while it reads: notes for the driver, and kinds of the batch for the sink."""

    notes: Session  # the session that reads has replies on their way
    options: SourceOptions
    partition: EntriesPartition
    batch: Callable[[], keys.MicroBatchName | None]  # the current micro-batch
    limits: Limits

    def lost(self, entries: Range, count: int) -> None:
        """Entries of a range are missing."""
        batch = self.partition.batch
        missing = partial(write_missing, member=self._member, token=batch.token, run=batch.run)
        self.notes.run(partial(missing, entries=entries, count=count))
        self.notes.run(partial(report_batch_kind, kind=keys.LOSSY, batch=self.batch()))

    def unreadable(self, streams: str | pa.Array, dead: Dead) -> None:
        """Rows of a page do not fit the schema."""
        rows = dead.rows.tolist()
        names = [streams] * len(rows) if isinstance(streams, str) else streams.take(pa.array(rows)).to_pylist()
        self.notes.run(lambda server: self._writer(server).dead(names, dead))

    def good(self, entries: Mapping[str, Sequence[bytes]]) -> None:
        """Entries fit, which an earlier run may have noted."""
        self.notes.run(lambda server: self._writer(server).good(entries))

    def columns(self, report: ColumnReport, is_complete: bool) -> None:
        """Values do not fit their columns, or columns are fields of no entry. The query does not need this note."""
        batch = self.partition.batch
        report = replace(report, tasks=batch.tasks, absent=report.absent if batch.reports_absent else ())
        if not report:
            return
        try:
            first = self.partition.task.parts[0].range
            self._writer(self.notes.get()).columns(batch.notes_stream, first, report, is_complete)
        except RStreamError as error:
            _log.warning("values that do not fit their column are not counted: %s", printable(str(error)))
            warnings = ColumnWarnings(STREAM_MODES, bool(self.options.retry_delay))
            warnings.warn(report, report.entries, "that this task has read")

    @property
    def _member(self) -> Membership:
        return Membership(self.options.group, self.options.consumer)

    def _writer(self, server: Server) -> NoteWriter:
        return NoteWriter(server, self._member, self.partition.batch.token, *_names_of(self.batch()), self.limits)


def _names_of(batch: keys.MicroBatchName | None) -> tuple[str, str]:
    """Return Spark's query ID and batch ID, as tasks see them (FACTS S8); empty outside of a query."""
    return ("", "") if batch is None else (batch.query, str(batch.number))


def report_batch_kind(server: Server, kind: str, batch: keys.MicroBatchName | None) -> None:
    """Report the kind of this micro-batch to the sink, in each run of the query. kind: NARROWED, before the first row:
    rows that an earlier run wrote of the other pieces belong to those; LOSSY, before the last row: rows that an earlier
    execution wrote of the lost entries stay. What was reported of earlier batches is deleted."""
    if batch is None:
        return
    key, field = keys.batch_kind_key(batch.query), keys.batch_kind_field(kind, batch.number, batch.query_run)
    *_, fields = server.execute_all([("HSET", key, field, 1), ("PEXPIRE", key, _KIND_MILLISECONDS), ("HKEYS", key)])
    numbers = {name: keys.number_of_kind_field(name) for name in fields}
    if earlier := [name for name, number in numbers.items() if number is not None and number < batch.number]:
        server.execute("HDEL", key, *earlier)
