"""Where a micro-batch starts, on a Spark that does not say so: before 4.2 `latestOffset()` has no arguments.

What is known there (docs/internals/facts.md, S36):

    a run that finds an offset log asks first for `partitions(x, x)`, where x is the log's last offset;
    where the batch that ends at x was not committed, it is run again, by `partitions(start, x)`;
    a batch is planned, run and committed before `latestOffset()` is asked again;
    a run without an offset log asks for `latestOffset()`, and then for `initialOffset()`.

So whenever `latestOffset()` is asked, the end that was planned last is committed; where none was, the query begins.
What was told and is not yet planned is told again.

Nor is a source asked there what it reports. Its counts go into the offset: Spark shows that in the query's progress.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from spark_streams.errors import UnsupportedError
from spark_streams.spark.read_limits import HAS_READ_LIMITS

if TYPE_CHECKING:
    import pyarrow as pa

REPORT = "report"  # in an offset, beside what Offset.from_json reads
COUNTS = ("lost", "claimed", "dead", "retried", "bad", "waiting")  # of run_counters, and of what waits
_WRAPPER = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"


def for_this_spark(reader: DataSourceStreamReader) -> DataSourceStreamReader:
    """A reader that is told start and limit, as this Spark wants it."""
    return reader if HAS_READ_LIMITS else StartingReader(reader)


class StartingReader(DataSourceStreamReader):
    """Tells a reader where each batch starts."""

    def __init__(self, reader: DataSourceStreamReader) -> None:
        self._reader = reader
        self._planned: dict[str, object] | None = None  # where the batch ends that was planned last
        self._told: dict[str, object] | None = None  # where one ends that is not planned yet

    def initialOffset(self) -> dict[str, object]:
        return self._reader.initialOffset()

    def latestOffset(self) -> dict[str, object]:  # type: ignore[override]  # as Spark 4.0 and 4.1 call it
        if self._told is None:
            start = self._reader.initialOffset() if self._planned is None else self._planned
            end = self._reader.latestOffset(start, self._reader.getDefaultReadLimit())
            if end == start:
                return end
            report = self._reader.reportLatestOffset() or {}
            counts = {name: report[name] for name in COUNTS if report.get(name)}
            self._told = {**end, REPORT: counts} if counts else end
        return self._told

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> Sequence[InputPartition]:
        """Raises UnsupportedError where the calls come in another order than is known."""
        if self._planned is None and self._told is not None and start == end:
            raise UnsupportedError(
                f"this Spark asks a query with a checkpoint for new entries before it says where that stands: set "
                f"{_WRAPPER} to false, and end each run of the query with spark_streams.run, which starts it again "
                "until everything is read"
            )
        planned = self._reader.partitions(start, end)
        self._planned, self._told = end, None
        return planned

    def commit(self, end: dict[str, object]) -> None:
        self._reader.commit(end)

    def stop(self) -> None:
        self._reader.stop()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reader.read(partition)
