"""A stream as an output of a job: rows are appended as entries, once for each micro-batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame

from spark_streams.connector.options.sink_options import SinkOptions
from spark_streams.connector.sink.encode.chunks import Destination
from spark_streams.connector.watch.lineage.datasets import Dataset, sink_dataset


def written_once(options: SinkOptions, name: str) -> Mapping[str, str]:
    """Return the option with which rows of a micro-batch are written once, also if Spark replays it: none with
    delivery=at-least-once. name: of the output within the query."""
    return {"transaction": name} if options.delivery == "exactly-once" else {}


@dataclass(frozen=True)
class Stream:
    """A stream. options: checked; raw_options: for format("rstream"); name: of the output within the query."""

    options: SinkOptions
    raw_options: Mapping[str, str]
    name: str

    @property
    def plan(self) -> str:
        """Line of `--check`."""
        once = "" if self.options.delivery == "exactly-once" else "; at least once"
        return f"{Destination.from_options(self.options).shown} at {self.options.address}{once}"

    @property
    def dataset(self) -> Dataset | None:
        """The stream in the lineage, None if rows name their streams."""
        return sink_dataset(self.options)

    def write(self, rows: DataFrame, number: int) -> None:
        """Write one micro-batch of the query that runs on this thread."""
        once = written_once(self.options, f"output:{self.name}")
        rows.write.format("rstream").mode("append").options(**{**once, **self.raw_options}).save()
