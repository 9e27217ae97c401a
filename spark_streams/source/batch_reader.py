"""The reader behind spark.read: plans ranges on the driver, reads them in tasks, and touches no consumer group.

Spark 4.3 keeps one plan for one loaded DataFrame (S22): it reads the same entries whenever it is used, and what a
pushed filter leaves out is left out of every other use of that DataFrame, too. So filters narrow what is read only
where the user asks for it (`pushFilters`); PushingBatchReader is the class for that, because Spark refuses a reader
that implements pushFilters while the session has the setting off (S16).
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_streams.deadletter.envelope import MARK, text
from spark_streams.errors import SchemaError
from spark_streams.options.source_options import BatchSourceOptions
from spark_streams.source.batch.infer_schema import infer
from spark_streams.source.batch.plan import plan_tasks
from spark_streams.source.batch.pushdown import narrowing_of
from spark_streams.source.batch.sample import sample
from spark_streams.source.batch.stream_bounds import Narrowing
from spark_streams.source.limits import LIMITS, Limits
from spark_streams.source.membership import Membership
from spark_streams.source.notes.column_warnings import READ_MODES, ColumnWarnings
from spark_streams.source.partitioning import Task
from spark_streams.source.rows.column_report import ColumnReport
from spark_streams.source.rows.column_tally import ColumnTally
from spark_streams.source.rows.columns import Columns
from spark_streams.source.task.fetcher import Fetch
from spark_streams.spark.same_version import SameVersion
from spark_streams.wire.session import Session

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter  # not in Spark 4.0

_NOBODY = Membership((), "", "")  # reading ranges needs no group

_TYPES: dict[str, DataType] = {
    "long": LongType(),
    "double": DoubleType(),
    "boolean": BooleanType(),
    "date": DateType(),
    "timestamp": TimestampType(),
    "string": StringType(),
    "binary": BinaryType(),
}


def infer_schema(options: BatchSourceOptions) -> StructType:
    """The columns of a sample of the streams: its fields, without metadata columns. Raises SchemaError."""
    with Session(options.address, "inferring a schema") as server:
        entries = server.run(lambda connection: sample(connection, options))
    columns = infer(entries, skip=[options.column_name_of_corrupt_record, text(MARK)])
    if not columns:
        raise SchemaError(
            f"inferSchema found entries at {options.address}, and in them no field that can be a column: give a "
            "schema, such as _fields MAP<STRING, STRING>"
        )
    return StructType([StructField(name, _TYPES[kind]) for name, kind in columns])


@functools.lru_cache(maxsize=8)
def _warnings(_read: str) -> ColumnWarnings:
    """What this process, which runs many tasks, says of one read."""
    return ColumnWarnings(READ_MODES)


class TaskPartition(InputPartition):
    """One task's share; None where there is nothing to read. read: the name of the read that it is of; is_first: the
    task tells of columns that no entry has a field for."""

    def __init__(self, task: Task | None, read: str, is_first: bool) -> None:
        super().__init__(task)
        self.task = task
        self.read = read
        self.is_first = is_first


class BatchReader(SameVersion, DataSourceReader):
    """format("rstream") for spark.read. Raises SchemaError for a column that only a group can fill."""

    def __init__(self, options: BatchSourceOptions, columns: Columns, limits: Limits = LIMITS) -> None:
        if columns.wants_deliveries:
            raise SchemaError(
                "column '_deliveries' counts what a consumer group delivered, and spark.read has no group: drop it, or "
                "use readStream"
            )
        if columns.wants_tries:
            raise SchemaError(
                "column '_attempt' counts what a query with retryDelay tried, and spark.read tries nothing: drop it, "
                "or use readStream"
            )
        self._options = options
        self._columns = columns
        self._limits = limits
        self._narrowing = Narrowing()

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks. Where the end is `latest` it is pinned here: a task that runs again reads the same."""
        with Session(self._options.address, "planning what is read") as server:
            tasks: Sequence[Task | None] = server.run(
                lambda connection: plan_tasks(connection, self._options, self._narrowing, self._limits)
            )
        # Spark makes a task of its own where there is none, and it would not be one of ours.
        read = secrets.token_hex(6)
        return [TaskPartition(task, read, number == 0) for number, task in enumerate(tasks or [None])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The task's rows, those of a stream in its order. Raises ServerError, DecodeError in mode FAILFAST."""
        assert isinstance(partition, TaskPartition)
        if partition.task is None:
            return
        # The driver has been connected: the address is right, and a server that is away is waited for.
        tally = ColumnTally(self._columns)

        def found(report: ColumnReport, _whole: bool) -> None:
            report = report if partition.is_first else replace(report, absent=())
            _warnings(partition.read).say(report, report.entries, "that a task has read")

        with Session(self._options.address, "reading", is_known=True) as server, tally.telling(found):
            fetch = Fetch(server, _NOBODY, partition.task.ranges, deliveries=False, limits=self._limits)
            for page in fetch.pages():
                if page.rows:
                    decoded = self._columns.batch(page.entries, page.rows, page.streams)
                    tally.add(page.entries, page.rows, page.streams, decoded)
                    yield decoded.batch


class PushingBatchReader(BatchReader):
    """The same, with filters on stream, id and timestamp narrowing what is read."""

    def __init__(self, options: BatchSourceOptions, columns: Columns, schema: StructType) -> None:
        super().__init__(options, columns)
        prefix = "_" if columns.declared else ""
        meanings = {f"{prefix}{name}": name for name in ("stream", "id", "timestamp")}
        # A column with a collation has other ideas of what is equal.
        plain = {f.name for f in schema.fields if not isinstance(f.dataType, StringType) or f.dataType == StringType()}
        self._meanings = {column: name for column, name in meanings.items() if column in plain}

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Narrow what is read, and hand all filters back: Spark applies them, too."""
        self._narrowing = narrowing_of(filters, self._meanings)
        return filters
