"""Spark's interface of Python data sources, as Spark 4.0 to 4.3 have it: base classes, limits, the order of calls.

Each difference is detected by a feature of pyspark and not by its version, because vendors backport features. An engine
that runs the source or the sink has classes of its own, and asks for these (running_pyspark.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from spark_streams.connector import counters
from spark_streams.connector.errors import UnsupportedError
from spark_streams.connector.spark.running_pyspark import running_module, with_engines_class

if TYPE_CHECKING:
    import pyarrow as pa

# -- base classes of a reader of spark.read, and of a streaming sink that receives Arrow record batches ----------------

# Filters of a query are passed since 4.1. An engine asks whether `pushFilters` is still that of its own class.
if not TYPE_CHECKING:
    DataSourceReader = with_engines_class(DataSourceReader)

HAS_FILTERS = hasattr(DataSourceReader, "pushFilters")

# Spark has the sink's class since 4.1. For 4.0, it is a class that is both a stream writer and an Arrow writer.
if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:
    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter
    except ImportError:
        from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter

        class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):
            """The class of Spark 4.1."""

    DataSourceStreamArrowWriter = with_engines_class(DataSourceStreamArrowWriter)

# -- limits of a streaming source per trigger --------------------------------------------------------------------------

# Spark passes them to a Python source since 4.2. Before, it only asks for the latest offset, and the source limits
# itself (StartingReader). Then these classes take the place of Spark's.

_MODULE = running_module("sql.streaming.datasource")
HAS_READ_LIMITS = _MODULE is not None

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
elif _MODULE is not None:
    ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow = (
        _MODULE.ReadAllAvailable, _MODULE.ReadLimit, _MODULE.ReadMaxRows, _MODULE.SupportsTriggerAvailableNow,
    )  # fmt: skip
else:

    class ReadLimit:
        """Any limit."""

    class ReadAllAvailable(ReadLimit):
        """No limit."""

    class ReadMaxRows(ReadLimit):
        """Maximum number of rows."""

        def __init__(self, max_rows):
            self.max_rows = max_rows

    class SupportsTriggerAvailableNow:
        """A source that can prepare for a run that ends with the entries available now."""


# -- the start of a micro-batch on a Spark before 4.2, where `latestOffset()` has no arguments -------------------------

# The order of calls there (docs/internals/facts.md, S36):
#
#     a run with an offset log first calls `partitions(x, x)`, where x is the log's last offset;
#     if the batch that ends at x was not committed, it is run again, by `partitions(start, x)`;
#     a batch is planned, run and committed before `latestOffset()` is called again;
#     a run without an offset log calls `latestOffset()`, and then `initialOffset()`.
#
# So at each call of `latestOffset()`, the last planned end is committed. If no batch was planned, the query starts. An
# end that was returned and is not yet planned is returned again.
#
# Spark does not call reportLatestOffset() there. So the counts are part of the offset, which is in the query's
# progress.

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


# -- Spark commits each batch before it plans the next one (docs/internals/facts.md, S3) -------------------------------

# With `asyncProgressTrackingEnabled`, Spark plans a batch while the log of the batch before it is not written, and
# writes no log for most batches. A source cannot see the options of its query's sink. It sees that `commit` is not
# called.


@dataclass
class CommitCalls:
    """Names of the last batch that this run has planned, and of the last one that Spark has committed."""

    planned: str = ""
    committed: str = ""

    def plan(self, before: str, batch: str) -> None:
        """Note a batch that is planned. before: the name of the batch before it.

        Raises UnsupportedError if this run has planned the batch before it, and Spark has not committed that."""
        if before and before == self.planned and before != self.committed:
            raise UnsupportedError(
                "the query runs with asyncProgressTrackingEnabled: Spark starts a micro-batch before the one before it "
                "is in the checkpoint, so the source cannot know which entries it may acknowledge. Remove the option "
                "asyncProgressTrackingEnabled from writeStream"
            )
        self.planned = batch
