"""Reader of spark.read: plans ranges on the driver and reads them in tasks, without a consumer group.

Spark 4.3 keeps one plan per loaded DataFrame (S22): each use reads the same entries, and entries that a pushed filter
leaves out are missing from every other use of that DataFrame, too. So filters are pushed only if the user sets
`pushFilters`. PushingBatchReader is a class of its own, because Spark refuses a reader that implements pushFilters if
the session disables filter pushdown (S16).
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from pyspark.sql import types
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StringType, StructField, StructType

from spark_streams.connector.deadletter.envelope import MARK, text
from spark_streams.connector.errors import SchemaError
from spark_streams.connector.options.source_options import BatchSourceOptions
from spark_streams.connector.source.archive.files import ArchiveTable
from spark_streams.connector.source.archive.history import history_tasks, plan_with_archive
from spark_streams.connector.source.archive.rows import NO_GROUP, Rows, SeenIds, rows_beside, rows_of
from spark_streams.connector.source.batch_plan import Narrowing, narrowing_of, plan_tasks
from spark_streams.connector.source.infer_schema import infer, sample
from spark_streams.connector.source.limits import LIMITS, Limits
from spark_streams.connector.source.partitioning import Task
from spark_streams.connector.source.rows.column_report import READ_MODES, ColumnReport, ColumnTally, ColumnWarnings
from spark_streams.connector.source.rows.columns import Columns
from spark_streams.connector.source.task.fetcher import Fetcher
from spark_streams.connector.spark.arrow import rows_for_spark
from spark_streams.connector.spark.data_source import DataSourceReader
from spark_streams.connector.spark.worker import SameVersion
from spark_streams.connector.wire.connection import Server
from spark_streams.connector.wire.session import Session

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter  # not in Spark 4.0

_TYPES: dict[str, types.DataType] = {
    "long": types.LongType(),
    "double": types.DoubleType(),
    "boolean": types.BooleanType(),
    "date": types.DateType(),
    "timestamp": types.TimestampType(),
    "string": types.StringType(),
    "binary": types.BinaryType(),
}


def infer_schema(options: BatchSourceOptions) -> StructType:
    """Infer columns from a sample of the streams. A column's comment names misfits. Raises SchemaError."""
    with Session(options.address, "inferring a schema") as session:
        entries = session.run(functools.partial(sample, options=options))
    skip = [options.column_name_of_corrupt_record, text(MARK)]
    columns = infer(entries, skip, options.null_value)
    if not columns:
        raise SchemaError(
            f"inferSchema found entries at {options.address}, but no field that can be a column. Pass a schema, such "
            "as _fields MAP<STRING, STRING>"
        )
    comments = [None if column.comment is None else {"comment": column.comment} for column in columns]
    fields = zip(columns, comments, strict=True)
    return StructType([StructField(column.name, _TYPES[column.kind], metadata=comment) for column, comment in fields])


@functools.lru_cache(maxsize=8)
def _warnings(_read: str, modes: tuple[str, ...]) -> ColumnWarnings:
    """Return the warnings of one read in this process, which runs many tasks."""
    return ColumnWarnings(modes)


class TaskPartition(InputPartition):
    """Part that one task reads, without a consumer group. read: name of the read, or of the batch; is_first: this task
    reports columns that no entry has a field for; is_history: its entries are in the archive only."""

    modes: ClassVar[tuple[str, ...]] = READ_MODES
    said = "that a task has read"

    def __init__(self, task: Task, read: str, is_first: bool, is_history: bool) -> None:
        super().__init__(task)
        self.is_history = is_history
        self.task = task
        self.read = read
        self.is_first = is_first

    def warn(self, report: ColumnReport, _is_complete: bool) -> None:
        report = report if self.is_first else replace(report, absent=())
        _warnings(self.read, self.modes).warn(report, report.entries, self.said)


class BatchReader(SameVersion, DataSourceReader):
    """format("rstream") for spark.read. Raises SchemaError for a column that needs a consumer group."""

    # Arrow schema of the rows, None: that of the columns. Sail takes no other time zone, and no other field names
    form: pa.Schema | None = None

    def __init__(self, options: BatchSourceOptions, columns: Columns, limits: Limits = LIMITS) -> None:
        if columns.wants_deliveries:
            raise SchemaError(
                "column '_deliveries' needs a consumer group, and spark.read has none. Remove the column, or use "
                "readStream"
            )
        if columns.wants_attempt:
            raise SchemaError(
                "column '_attempt' needs a query with retryDelay, and spark.read retries no entry. Remove the column, "
                "or use readStream"
            )
        self._options = options
        self._columns = columns
        self._limits = limits
        self._narrowing = Narrowing()
        self._archive = None if options.archive_path is None else ArchiveTable(options.archive_path)

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks. An end of `latest` is fixed here, so a task that runs again reads the same entries."""
        with Session(self._options.address, "planning a read") as session:
            tasks, history = session.run(self._plan)
        # Without a task Spark would create a partition of another class.
        planned, read = [*history, *tasks] or [Task(())], secrets.token_hex(6)
        return [TaskPartition(task, read, n == 0, n < len(history)) for n, task in enumerate(planned)]

    def _plan(self, server: Server) -> tuple[list[Task], list[Task]]:
        if self._archive is None:
            return plan_tasks(server, self._options, self._narrowing, self._limits), []
        tasks, ranges = plan_with_archive(server, self._options, self._narrowing, self._limits)
        # The files are listed after the streams were asked: entries that were trimmed before are in them.
        return tasks, history_tasks(self._archive, ranges, self._options.min_partitions or 1)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return rows_for_spark(self._batches(partition), self._options.arrow_batches)

    def _batches(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the task's rows, those of a stream in its order. Raises ServerError, DecodeError in mode FAILFAST."""
        assert isinstance(partition, TaskPartition)
        if not partition.task.parts:
            return
        tally = ColumnTally(self._columns)

        with tally.reporting(partition.warn):
            for streams, entries in self._pages(partition.task, partition.is_history):
                batch = tally.batch(entries, streams).batch
                yield batch if self.form is None else batch.cast(self.form)

    def _pages(self, task: Task, is_history: bool) -> Iterator[Rows]:
        """Yield the task's pages of entries."""
        if is_history:
            assert self._archive is not None
            yield from rows_of(self._archive, task.ranges)
            return
        seen = SeenIds()
        # The driver was connected, so the address is right: an unreachable server is waited for.
        with Session(self._options.address, "reading", is_known=True) as session:
            fetcher = Fetcher(session, NO_GROUP, task.parts, deliveries=False, limits=self._limits)
            for page in fetcher.pages():
                if page.entries.count:
                    if self._archive is not None:
                        seen.add(page)
                    yield page.streams, page.entries
        if self._archive is not None:
            yield from rows_beside(self._archive, task.ranges, seen.by_stream())


class PushingBatchReader(BatchReader):
    """BatchReader that reads only entries which filters on stream, ID and timestamp admit."""

    def __init__(self, options: BatchSourceOptions, columns: Columns, schema: StructType) -> None:
        super().__init__(options, columns)
        prefix = "_" if columns.declared else ""
        names = {f"{prefix}{name}": name for name in ("stream", "id", "timestamp")}
        # Columns with a collation compare texts in another way.
        plain = {f.name for f in schema.fields if not isinstance(f.dataType, StringType) or f.dataType == StringType()}
        self._metadata = {column: name for column, name in names.items() if column in plain}

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Narrow the read, and return all filters: Spark applies them, too."""
        self._narrowing = narrowing_of(filters, self._metadata)
        return filters
