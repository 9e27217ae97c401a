"""Streaming reader with `archivePath`: a new query reads the archive first, then its streams.

The live reader (stream_reader) creates the groups, so that no entry is trimmed that they need. While the archive is
read, it reads nothing, and the groups stay where they begin. An offset of this time is the live reader's first offset
with one more field, `history` (archive.history). Offsets after it are those of the live reader, unchanged.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from spark_streams.base.untyped import Json
from spark_streams.connector.errors import UnsupportedError
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.source.archive.files import ArchiveTable
from spark_streams.connector.source.archive.history import (
    END,
    Cut,
    History,
    batch_ends,
    begin_history,
    history_tasks,
    next_history,
    require_unread,
)
from spark_streams.connector.source.archive.rows import Rows, read_ids, rows_beside, rows_of
from spark_streams.connector.source.batch_reader import TaskPartition
from spark_streams.connector.source.group_client import GroupClient
from spark_streams.connector.source.limits import LIMITS, Limits
from spark_streams.connector.source.offset import HISTORY, Offset, Range
from spark_streams.connector.source.partitioning import ALL, Part, Task
from spark_streams.connector.source.quota import BatchQuota
from spark_streams.connector.source.rows.column_report import STREAM_MODES, ColumnTally
from spark_streams.connector.source.rows.columns import Columns
from spark_streams.connector.source.stream_reader import UNLIMITED, StreamReader
from spark_streams.connector.spark import data_source
from spark_streams.connector.spark.arrow import rows_for_spark
from spark_streams.connector.spark.worker import SameVersion, freeze_imported_modules
from spark_streams.connector.wire.session import Session


class HistoryPartition(TaskPartition):
    """Part of a batch from the archive. Without `is_history` the task reads what the stream lacks."""

    modes = STREAM_MODES
    said = "that a task has read from the archive"


class HistoryReader(SameVersion, DataSourceStreamReader, data_source.SupportsTriggerAvailableNow):
    """format("rstream") for readStream with archivePath. live: reads the streams."""

    def __init__(self, live: StreamReader, options: SourceOptions, columns: Columns, limits: Limits = LIMITS) -> None:
        assert options.archive_path is not None
        self._live = live
        self._options = options
        self._columns = columns
        self._limits = limits
        self._archive = ArchiveTable(options.archive_path)
        self._is_open = False  # this process has the lease, and the groups exist
        self._finished: History | None = None  # the history behind which the archive has nothing more
        self._ends: tuple[Cut, data_source.ReadLimit, Iterator[Cut]] | None = None  # of the batches after a cut

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_ends": None}

    # -- on the driver -----------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, object]:
        return _with_history(self._live.initialOffset(), History())

    def getDefaultReadLimit(self) -> data_source.ReadLimit:
        return self._live.getDefaultReadLimit()

    def prepareForTriggerAvailableNow(self) -> None:
        self._live.prepareForTriggerAvailableNow()

    def latestOffset(self, start: dict[str, object], limit: data_source.ReadLimit) -> dict[str, object]:
        """Return the end of the next batch: of the archive, then of the streams."""
        if HISTORY not in start:
            return self._live.latestOffset(start, limit)
        if isinstance(limit, data_source.ReadAllAvailable):
            raise UnsupportedError(
                "trigger(once=True) runs a single batch, and a query with archivePath reads the archive and the "
                "streams in different batches. Use trigger(availableNow=True)"
            )
        position, history = _parted(start)
        if history != self._finished:
            opened = self._opened(position, history)
            further = next_history(self._archive, opened, self._ends_after(opened, limit))
            if further is not None:
                return _with_history(position, further)
            self._finished = history
        if history.lost():
            self._live.batches.ask(lambda client: require_unread(client.server, self._archive, history))
        end = self._live.latestOffset(position, limit)
        return start if end == position else end

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> Sequence[InputPartition]:
        position, history = _parted(start)
        if HISTORY not in end:
            return self._live.partitions(position, end)
        _, read = _parted(end)
        self._opened(position, read)
        if start == end:
            return []
        ranges = read.trimmed(history.read, read.read)
        trimmed = self._tasks(ranges)
        removed = self._tasks(read.removed()) if read.read == END else []
        tasks, name = [*trimmed, *removed] or [Task(())], secrets.token_hex(6)
        return [HistoryPartition(task, name, n == 0, n < len(trimmed)) for n, task in enumerate(tasks)]

    def commit(self, end: dict[str, object]) -> None:
        if HISTORY not in end:
            self._live.commit(end)

    def reportLatestOffset(self) -> dict[str, object]:
        return self._live.reportLatestOffset()

    def stop(self) -> None:
        self._live.stop()

    def _opened(self, position: dict[str, object], history: History) -> History:
        """Create the groups, hold the lease, and return the history with its bounds."""
        batches, begin = self._live.batches_from(position)
        if self._is_open and history.bounds is not None:
            batches.hold()
            return history
        opened = batches.open_groups(begin, history.joined, partial(self._with_bounds, begin=begin, history=history))
        self._is_open = True
        return opened

    def _with_bounds(self, client: GroupClient, begin: Offset, history: History) -> History:
        if history.bounds is not None:
            return history
        streams = self._live.batches.streams
        return begin_history(client, streams, self._archive, self._live.resolved_options, begin)

    def _ends_after(self, history: History, limit: data_source.ReadLimit) -> Iterator[Cut]:
        """Return the ends of the batches after `history.read`. They are found once per run."""
        if self._ends is None or self._ends[:2] != (history.read, limit):
            entries = (
                limit.max_rows if isinstance(limit, data_source.ReadMaxRows) and limit.max_rows < UNLIMITED else None
            )
            quota = BatchQuota.from_options(self._options).with_entries(entries)
            ends = batch_ends(self._archive, history.trimmed(history.read, END), quota)
        else:
            ends = self._ends[2]
        return self._noting(ends, limit)

    def _noting(self, ends: Iterator[Cut], limit: data_source.ReadLimit) -> Iterator[Cut]:
        for end in ends:
            self._ends = (end, limit, ends)
            yield end

    def _tasks(self, ranges: Sequence[Range]) -> list[Task]:
        if self._options.ordered:
            return [Task((Part(part, ALL),)) for part in ranges]
        return history_tasks(self._archive, ranges, self._options.min_partitions or 1)

    # -- in a task ---------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return rows_for_spark(self._batches(partition), self._options.arrow_batches)

    def _batches(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, HistoryPartition):
            yield from self._live.read_batches(partition)
            return
        freeze_imported_modules()
        tally = ColumnTally(self._columns)
        with tally.reporting(partition.warn):
            for streams, entries in self._rows(partition):
                deliveries = pa.nulls(entries.count, pa.int64()) if self._columns.wants_deliveries else None
                yield tally.batch(entries, streams, deliveries).batch

    def _rows(self, partition: HistoryPartition) -> Iterator[Rows]:
        task = partition.task
        if partition.is_history:
            yield from rows_of(self._archive, task.ranges)
            return
        # The driver was connected, so the address is right: an unreachable server is waited for.
        with Session(self._options.address, "reading beside the archive", is_known=True) as session:
            seen = read_ids(session, task.parts, self._limits)
        yield from rows_beside(self._archive, task.ranges, seen)


def _with_history(position: Mapping[str, object], history: History) -> dict[str, object]:
    return {**position, HISTORY: history.to_json()}


def _parted(offset: Mapping[str, object]) -> tuple[dict[str, object], History]:
    """Return the live reader's offset, and the history. Raises OffsetError."""
    position = {name: value for name, value in offset.items() if name != HISTORY}
    return position, History.from_json(cast(Mapping[str, Json], offset.get(HISTORY, {})))
