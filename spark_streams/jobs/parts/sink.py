"""[sink]: the stream to which a job appends rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyspark.sql import DataFrame

from spark_streams.connector.options.sink_options import SinkOptions
from spark_streams.connector.sink.encode.chunks import Destination
from spark_streams.connector.watch.lineage.datasets import Dataset, sink_dataset
from spark_streams.jobs.job import Job
from spark_streams.jobs.output.stream import written_once
from spark_streams.jobs.part import Facts, Written
from spark_streams.jobs.settings.config import FREE


class Sink(Written):
    """Stream to which each micro-batch is appended once, with the options of `[sink]`.

    Args:
        job: The job, with its configuration.

    Raises:
        OptionError: An option cannot be used.
    """

    KEYS = {"sink": FREE}
    REQUIRED = ("sink.stream",)

    def __init__(self, job: Job) -> None:
        self.options = SinkOptions.parse(job.options("sink"))
        # All values of a group may be null, and an entry needs a field.
        self._given = {"nulls": "empty", **written_once(self.options, "groups"), **job.options("sink")}
        self._rows = 0

    def streams(self) -> Mapping[str, SinkOptions]:
        return {"sink.stream": self.options}

    def datasets(self) -> Iterable[Dataset | None]:
        return [sink_dataset(self.options)]

    def plan(self) -> Facts:
        return {"write": f"{Destination.from_options(self.options).shown} at {self.options.address}"}

    def write(self, rows: DataFrame, number: int) -> None:
        """Append one micro-batch. number: of the batch, which the transaction takes from Spark itself."""
        rows = rows.persist()
        try:
            rows.write.format("rstream").mode("append").options(**self._given).save()
            self._rows += rows.count()
        finally:
            rows.unpersist()

    def summary(self) -> Facts:
        return {"groups": self._rows, "stream": self.options.stream}
