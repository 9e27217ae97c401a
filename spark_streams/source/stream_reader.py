"""The streaming reader that Spark drives: on the driver it hands out micro-batches, in a task it reads.

Spark's part only: offsets as JSON, read limits, partitions. What a batch is stands in micro_batch_stream.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from spark_streams.errors import RStreamError, ServerUnreachableError, UnsupportedError
from spark_streams.model.keys import LOSSY, NARROWED, batch_kind_key, batch_kind_value
from spark_streams.model.micro_batch import MicroBatchName
from spark_streams.model.printable import printable
from spark_streams.options.source_options import SourceOptions
from spark_streams.source.entry_range import EntryRange
from spark_streams.source.limits import LIMITS, Limits
from spark_streams.source.membership import Membership
from spark_streams.source.microbatch.micro_batch_stream import MicroBatchStream
from spark_streams.source.notes.column_warnings import STREAM_MODES, ColumnWarnings
from spark_streams.source.notes.task_notes import Writer
from spark_streams.source.offset import Offset
from spark_streams.source.partitioning import Task
from spark_streams.source.recovery.poison_record import note_try, tried_key
from spark_streams.source.rows.column_report import ColumnReport
from spark_streams.source.rows.columns import Columns
from spark_streams.source.rows.malformed import Dead
from spark_streams.source.shard_sets import require_not_in_shards_since, require_shards_of, with_shards
from spark_streams.source.task.read_partition import Told, read_task
from spark_streams.spark.read_limits import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from spark_streams.spark.same_version import SameVersion
from spark_streams.spark.task_context import micro_batch
from spark_streams.spark.worker import ignore_interrupts
from spark_streams.wire.connection.server import Server
from spark_streams.wire.session import Session

# Spark sets every limit aside for trigger(once=True), and for it alone: so there is always one.
UNLIMITED = 1 << 62
_KNOWN = 4  # offsets that are not read again from what Spark gives back
_TOLD_MILLISECONDS = 7 * 86_400_000
_log = logging.getLogger("spark_streams.source")


@dataclass(frozen=True)
class TaskBatch:
    """What tasks know of their micro-batch. token: its own name; narrowed: it is a piece of one that failed; lossy: it
    has fewer entries than it was given; tasks: how many it has; notes_beside: the stream that notes on columns stand
    beside; wants_absent: whether these are to tell of columns that no entry has a field for; tried: the key to note
    Spark's name of the batch under, None: attempts at it are not counted."""

    token: str
    narrowed: bool
    lossy: bool
    tasks: int
    notes_beside: str
    wants_absent: bool
    tried: bytes | None


class EntriesPartition(InputPartition):
    """One task's share of a micro-batch."""

    def __init__(self, task: Task, batch: TaskBatch) -> None:
        super().__init__(task)
        self.task = task
        self.batch = batch


class StreamReader(SameVersion, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """format("rstream") for readStream. One object lives on the driver for the whole run of a query (FACTS S1).

    now: a monotonic clock, in seconds; batch: which micro-batch the code runs in."""

    def __init__(
        self,
        options: SourceOptions,
        columns: Columns,
        now: Callable[[], float] = time.monotonic,
        limits: Limits = LIMITS,
        batch: Callable[[], MicroBatchName | None] = micro_batch,
        first_at_once: bool = False,
    ) -> None:
        """first_at_once: the first trigger waits for no minEntriesPerTrigger: a run may end with it, and not say so."""
        self._first_at_once = first_at_once
        self._options = options
        self._now = now
        self._limits = limits
        self._batch = batch
        self._columns = columns
        self._wanted = options  # with the names of shards
        self._has_met_checkpoint = False
        self._batches: MicroBatchStream | None = None
        self._known: list[tuple[dict[str, object], Offset]] = []  # the last offsets
        self._until_now = False  # whether the end of the run is still to be fixed

    def __getstate__(self) -> dict[str, object]:
        """Tasks get the options and the columns; connections and what is known of batches stay on the driver."""
        return {**self.__dict__, "_batches": None, "_known": []}

    # -- on the driver -----------------------------------------------------------------------------------------

    @property
    def batches(self) -> MicroBatchStream:
        """The query's batches, made on first use: only the driver's copy of the reader has them."""
        return self._made(is_known=False)

    def _made(self, is_known: bool) -> MicroBatchStream:
        """The same. is_known: the server has answered before, and is waited for where it is away."""
        if self._batches is None:
            ignore_interrupts()
            self._wanted = self._options
            if self._options.streams is not None:
                with self._looking(is_known) as server:
                    self._wanted = server.run(lambda there: with_shards(there, self._options, self._options.shards))
            self._batches = MicroBatchStream(
                self._wanted, self._now, limits=self._limits, first_at_once=self._first_at_once
            )
        return self._batches

    def _looking(self, is_known: bool) -> Session:
        return Session(self._options.address, f"looking for the streams of group {self._options.group!r}", is_known)

    def initialOffset(self) -> dict[str, object]:
        first = self._prepared().first().to_json()
        if self._wanted.streams is not None:
            with self._looking(is_known=True) as server:
                server.run(lambda there: require_not_in_shards_since(there, self._wanted))
        return first

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_entries_per_trigger.otherwise or UNLIMITED)

    def prepareForTriggerAvailableNow(self) -> None:
        """A server that does not answer is left to the next call, which tells whether the query has a checkpoint."""
        self._until_now = True
        with contextlib.suppress(ServerUnreachableError):
            self._prepared()

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:
        """The end of the next batch; `start` itself where there is nothing to read."""
        most = limit.max_rows if isinstance(limit, ReadMaxRows) and limit.max_rows < UNLIMITED else None
        if isinstance(limit, ReadAllAvailable) and not self._options.no_ack and self._is_at_least_once:
            raise UnsupportedError(
                "trigger(once=True) ends a query without a word on whether its batch was committed: what it has read "
                "would stay pending, for others to claim; use trigger(availableNow=True), which reads the same and "
                "ends with nothing pending (or noAck=true, or delivery=at-most-once)"
            )
        begin = self._offset(start)
        end = self._prepared(begin).next(begin, most)
        return start if end is None else self._told(end)

    def _told(self, offset: Offset) -> dict[str, object]:
        """An offset as Spark keeps it."""
        value = offset.to_json()
        self._keep(value, offset)
        return value

    def _offset(self, value: dict[str, object]) -> Offset:
        """What Spark gives back: one of the last ones, nearly always. Raises OffsetError."""
        for known, offset in self._known:
            if known == value:
                return offset
        offset = Offset.from_json(value)
        self._keep(value, offset)
        return offset

    def _keep(self, value: dict[str, object], offset: Offset) -> None:
        self._known = [*self._known[1 - _KNOWN :], (value, offset)]

    @property
    def _is_at_least_once(self) -> bool:
        return self._options.delivery == "at-least-once"

    def _prepared(self, known: Offset | None = None) -> MicroBatchStream:
        """The batches, and the end of the run fixed. known: a checkpoint speaks of them, so the server has answered
        before, and is waited for where it is away."""
        batches = self._made(known is not None)
        if known is not None:
            batches.trust_address()
            if not self._has_met_checkpoint:
                require_shards_of(known.streams, self._options, self._wanted)
                self._has_met_checkpoint = True
        if self._until_now:
            batches.until_now()
            self._until_now = False
        return batches

    def reportLatestOffset(self) -> dict[str, object]:
        return self.batches.reported()

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> Sequence[InputPartition]:
        begin, stop = self._offset(start), self._offset(end)
        plan = self._prepared(begin).plan(begin, stop)
        if begin == stop:
            return []
        lossy = not plan.narrowed and sum(task.count for task in plan.tasks) < stop.held
        # Where nothing is left to read, a task says so to the sink.
        tasks = plan.tasks or [Task(())]
        beside, wants_absent = next(iter(stop.taken_from), ""), not self.batches.knows_fields
        tried = None if self._options.max_deliveries is None or not stop.held else tried_key(stop)
        batch = TaskBatch(stop.token, plan.narrowed, lossy, len(tasks), beside, wants_absent, tried)
        others = replace(batch, tried=None)  # one task notes it
        return [EntriesPartition(task, others if at else batch) for at, task in enumerate(tasks)]

    def commit(self, end: dict[str, object]) -> None:
        self.batches.commit(self._offset(end))

    def stop(self) -> None:
        if self._batches is not None:
            self._batches.stop()
            self._batches = None

    # -- in a task ---------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, EntriesPartition)
        task, batch = partition.task, partition.batch
        member = Membership(self._options.streams or (), self._options.group, self._options.consumer)
        # The driver has been connected: the address is right, and a server that is away is waited for.
        with (
            Session(self._options.address, f"reading for group {member.group!r}", is_known=True) as server,
            # The one that reads has replies on their way. Rarely needed. A note may be written twice.
            Session(self._options.address, f"notes of group {member.group!r}", is_known=True) as notes,
        ):

            def writer(there: Server) -> Writer:
                return Writer(there, member, batch.token, *self._batch_names(), self._limits)

            def lost(entries: EntryRange, count: int) -> None:
                notes.run(lambda there: writer(there).lost(entries, count))
                notes.run(lambda there: tell_the_sink(there, LOSSY, self._batch()))

            def counted(entries: EntryRange, count: int) -> None:
                notes.run(lambda there: writer(there).read(entries, count))

            def unreadable(streams: str | pa.Array, dead: Dead) -> None:
                rows = dead.rows.tolist()
                names = [streams] * len(rows) if isinstance(streams, str) else streams.take(pa.array(rows)).to_pylist()
                notes.run(lambda there: writer(there).dead(names, dead))

            def found(report: ColumnReport, whole: bool) -> None:
                report = replace(report, tasks=batch.tasks, absent=report.absent if batch.wants_absent else ())
                if not report:
                    return
                try:
                    writer(notes.get()).columns(batch.notes_beside, task.ranges[0], report, whole)
                except RStreamError as error:
                    self._say_here(report, error)

            if batch.tried is not None:
                tried = batch.tried
                server.run(lambda connection: note_try(connection, tried, batch.token, *self._batch_names()))
            if batch.narrowed:
                server.run(lambda connection: tell_the_sink(connection, NARROWED, self._batch()))
            elif batch.lossy:
                server.run(lambda connection: tell_the_sink(connection, LOSSY, self._batch()))
            told, fail = Told(lost, counted, unreadable, found), self._options.fail_on_data_loss
            yield from read_task(server, member, task, self._columns, told, fail, self._limits)

    def _say_here(self, report: ColumnReport, why: RStreamError) -> None:
        """The server does not take a note on columns. No query ends for want of it, and none waits."""
        _log.warning("what does not fit its column is in no count: %s", printable(str(why)))
        ColumnWarnings(STREAM_MODES, bool(self._options.retry_delay)).say(
            report, report.entries, "that this task has read"
        )

    def _batch_names(self) -> tuple[str, str]:
        """Spark's query id and batch id, as tasks see them (FACTS S8); empty outside of a query."""
        batch = self._batch()
        return ("", "") if batch is None else (batch.query, str(batch.number))


def tell_the_sink(server: Server, what: str, batch: MicroBatchName | None) -> None:
    """Tell the sink of this micro-batch, in each run of the query. what: NARROWED, before the first row: what an
    earlier run wrote of the other pieces is theirs; LOSSY, before the last row: what an earlier execution wrote of the
    lost entries stays."""
    if batch is not None:
        key, value = batch_kind_key(batch.query), batch_kind_value(batch.number, batch.query_run)
        server.execute_all([("HSET", key, what, value), ("PEXPIRE", key, _TOLD_MILLISECONDS)])
