"""Start of a micro-batch on a Spark before 4.2, where `latestOffset()` has no arguments.

The order of calls there (docs/internals/facts.md, S36):

    a run with an offset log first calls `partitions(x, x)`, where x is the log's last offset;
    if the batch that ends at x was not committed, it is run again, by `partitions(start, x)`;
    a batch is planned, run and committed before `latestOffset()` is called again;
    a run without an offset log calls `latestOffset()`, and then `initialOffset()`.

So at each call of `latestOffset()`, the last planned end is committed. If no batch was planned, the query starts. An
end that was returned and is not yet planned is returned again.

Spark does not call reportLatestOffset() there. So the counts are part of the offset, which is in the query's progress.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from spark_streams.connector import counters
from spark_streams.connector.errors import UnsupportedError
from spark_streams.connector.spark.read_limits import HAS_READ_LIMITS

if TYPE_CHECKING:
    import pyarrow as pa

REPORT = "report"  # in an offset, beside what Offset.from_json reads
_WRAPPER = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"


def for_this_spark(reader: DataSourceStreamReader) -> DataSourceStreamReader:
    """Wrap a reader that needs start and limit for this Spark, if necessary."""
    return reader if HAS_READ_LIMITS else StartingReader(reader)


class StartingReader(DataSourceStreamReader):
    """Passes the start of each batch to a reader."""

    def __init__(self, reader: DataSourceStreamReader) -> None:
        self._reader = reader
        self._planned_end: dict[str, object] | None = None  # end of the last planned batch
        self._unplanned_end: dict[str, object] | None = None  # end that was returned and is not planned yet

    def initialOffset(self) -> dict[str, object]:
        return self._reader.initialOffset()

    def latestOffset(self) -> dict[str, object]:  # type: ignore[override]  # as Spark 4.0 and 4.1 call it
        if self._unplanned_end is None:
            start = self._reader.initialOffset() if self._planned_end is None else self._planned_end
            end = self._reader.latestOffset(start, self._reader.getDefaultReadLimit())
            if end == start:
                return end
            report = self._reader.reportLatestOffset() or {}
            names = [*(counter.name for counter in counters.TABLE), "waiting"]
            counts = {name: report[name] for name in names if report.get(name)}
            self._unplanned_end = {**end, REPORT: counts} if counts else end
        return self._unplanned_end

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> Sequence[InputPartition]:
        """Plan the batch. Raises UnsupportedError if Spark's calls are in an unknown order."""
        if self._planned_end is None and self._unplanned_end is not None and start == end:
            raise UnsupportedError(
                f"this Spark asks for new entries before it passes the checkpoint's offset: set {_WRAPPER} to false, "
                "and run the query with spark_streams.run, which starts it again until everything is read"
            )
        planned = self._reader.partitions(start, end)
        self._planned_end, self._unplanned_end = end, None
        return planned

    def commit(self, end: dict[str, object]) -> None:
        self._reader.commit(end)

    def stop(self) -> None:
        self._reader.stop()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reader.read(partition)
