"""A stream as an output of a job: rows are appended as entries, once for each micro-batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame

from spark_streams.options.sink_options import SinkOptions
from spark_streams.sink.encode.destination import Destination


@dataclass(frozen=True)
class Stream:
    """options: checked; given: as format("rstream") takes them; name: what tells it from other outputs of the query."""

    options: SinkOptions
    given: Mapping[str, str]
    name: str

    @property
    def plan(self) -> str:
        """For `--check`."""
        once = "" if self.options.delivery == "exactly-once" else "; at least once"
        return f"{Destination.of(self.options).shown} at {self.options.address}{once}"

    def sweep(self) -> None:
        """Nothing: the ledger beside the stream knows what is written."""

    def write(self, rows: DataFrame, number: int) -> None:
        """One micro-batch of the query that runs on this thread."""
        once = {"transaction": f"output:{self.name}"} if self.options.delivery == "exactly-once" else {}
        rows.write.format("rstream").mode("append").options(**{**once, **self.given}).save()
