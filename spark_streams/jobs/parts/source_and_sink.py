"""[source] and [sink]: the streams that a job reads, and the stream to which it appends rows."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_streams.connector.datasource import RStreamDataSource
from spark_streams.connector.errors import ConfigError
from spark_streams.connector.options.access_options import SinkOptions
from spark_streams.connector.options.option import text_of
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.options.table import SOURCE
from spark_streams.connector.sink.chunks import Destination
from spark_streams.connector.sink.writers import WrittenRows
from spark_streams.connector.spark.worker import micro_batch_of_driver
from spark_streams.connector.watch.lineage.datasets import Dataset, sink_dataset
from spark_streams.jobs.job import Facts, Job, JobPart, WrittenPart
from spark_streams.jobs.job_config import FREE
from spark_streams.jobs.output.one_task import Pages, map_in_arrow
from spark_streams.jobs.output.ownership import check_checkpoint


class Source(JobPart):
    """Streams that a job reads through a consumer group, with the options of `[source]`.

    Attributes:
        options: The checked options.
        must_exist: Whether each stream must exist at the start; None: one of those that the checkpoint has read.

    Raises:
        ConfigError: `source.must_exist` is no truth value.
        OptionError: An option cannot be used.
    """

    KEYS = {"source": FREE}
    REQUIRED = ("source.group",)

    def __init__(self, job: Job) -> None:
        self.given = job.options("source")
        self._checkpoint: str | None = job.get("job.checkpoint")
        must_exist = self.given.pop("must_exist", None)
        if must_exist not in (None, "true", "false"):
            raise ConfigError(f"source.must_exist must be true or false, not {must_exist!r}")
        self.must_exist = None if must_exist is None else must_exist == "true"
        self.options = SourceOptions.parse(self.given)

    @property
    def retry_delay(self) -> str:
        """`retryDelay` as the user wrote it, "" without one."""
        return text_of("retryDelay", self.given, SOURCE) or ""

    def read(self, spark: SparkSession, schema: StructType | str, **more: str) -> DataFrame:
        """Return the entries as a streaming DataFrame.

        Args:
            spark: The session.
            schema: The columns to read.
            more: Options in addition to those of `[source]`.
        """
        if self._checkpoint:
            check_checkpoint(spark, self._checkpoint)
        return spark.readStream.format("rstream").schema(schema).options(**{**self.given, **more}).load()


@dataclass(frozen=True)
class StreamOutput:
    """A stream to which rows are appended as entries, once for each micro-batch, also if Spark replays it."""

    options: SinkOptions  # checked
    given: Mapping[str, str]  # the same, for format("rstream")
    transaction: str  # name within the query, by which rows are written once: not with delivery=at-least-once

    @property
    def plan(self) -> str:
        """Line of `--check`."""
        once = "" if self.options.delivery == "exactly-once" else "; at least once"
        return f"{Destination.from_options(self.options).shown} at {self.options.address}{once}"

    @property
    def dataset(self) -> Dataset | None:
        """The stream in the lineage, None if rows name their streams."""
        return sink_dataset(self.options)

    def write(self, rows: DataFrame, number: int | None = None) -> None:
        """Write one micro-batch of the query that runs on this thread. The transaction takes its number from Spark.

        As `rows.write.format("rstream")`, for which Spark starts two Python processes: to make the writer, to commit.
        """
        once = {"transaction": self.transaction} if self.options.delivery == "exactly-once" else {}
        writer = RStreamDataSource({**once, **self.given}).writer(rows.schema, overwrite=False)

        def write_part(pages: Pages) -> Pages:
            yield pa.record_batch({"message": [pickle.dumps(writer.write(pages))]})

        messages = map_in_arrow(rows, write_part, "message BINARY").collect()
        batch = micro_batch_of_driver(rows.sparkSession) if once else None
        # Rows that Spark knows to be none have no task. Their batch is closed, too.
        none = [] if batch is None else [WrittenRows(0, writer.batch_of(batch, self.transaction), {})]
        writer.commit([pickle.loads(message[0]) for message in messages] or none)


class Sink(WrittenPart):
    """Stream to which each micro-batch is appended once, with the options of `[sink]`.

    Raises:
        OptionError: An option cannot be used.
    """

    KEYS = {"sink": FREE}
    REQUIRED = ("sink.stream",)

    def __init__(self, job: Job) -> None:
        given = job.options("sink")
        self.options = SinkOptions.parse(given)
        # All values of a group may be null, and an entry needs a field.
        self._stream = StreamOutput(self.options, {"nulls": "empty", **given}, "groups")
        self._rows = 0

    def streams(self) -> Mapping[str, SinkOptions]:
        return {"sink.stream": self.options}

    def datasets(self) -> Iterable[Dataset | None]:
        return [self._stream.dataset]

    def plan(self) -> Facts:
        return {"write": f"{Destination.from_options(self.options).shown} at {self.options.address}"}

    def write(self, rows: DataFrame, number: int) -> None:
        """Append one micro-batch. number: of the batch."""
        rows = rows.persist()
        try:
            self._stream.write(rows, number)
            self._rows += rows.count()
        finally:
            rows.unpersist()

    def summary(self) -> Facts:
        return {"groups": self._rows, "stream": self.options.stream}
