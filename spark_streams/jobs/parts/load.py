"""[sink] and [job] of a load: rows of files that become entries of one stream, each once."""

from __future__ import annotations

import time

from pyspark.sql import DataFrame, SparkSession

from spark_streams.connector.errors import ConfigError, RStreamError
from spark_streams.connector.lag.survey import view_streams
from spark_streams.connector.options.sink_options import SinkOptions
from spark_streams.connector.running.ending import cut
from spark_streams.connector.sink.ledger.batch_commit import rows_written
from spark_streams.connector.wire.connect import connect
from spark_streams.connector.wire.connection.server import Server
from spark_streams.jobs.file_log import FileLog
from spark_streams.jobs.job import Job
from spark_streams.jobs.micro_batches import RunProgress, run_batches, trigger_of
from spark_streams.jobs.part import Facts, Part
from spark_streams.jobs.parts.files import Files
from spark_streams.jobs.settings.config import FREE


class Load(Part):
    """Load of files into one stream. A load that was killed or stopped continues where it ended.

    Args:
        job: The job, with its configuration.
        files: The files.

    Raises:
        ConfigError: `[sink]` or `[job]` cannot be used.
        RStreamError: The server does not answer, or the key is no stream.
    """

    KEYS = {"sink": FREE, "job": {"checkpoint": str, "name": str, "trigger": str}}
    REQUIRED = ("sink.stream", "job.checkpoint")

    def __init__(self, job: Job, files: Files) -> None:
        self._job, self._files = job, files
        self._sink = SinkOptions.parse(job.options("sink"))
        self._checkpoint = job.get("job.checkpoint")
        assert self._sink.stream is not None  # required
        self._stream = self._sink.stream
        _check(job, self._sink)
        trigger_of(job)
        with connect(self._sink.address) as server:
            view_streams(server, [self._stream])  # raises an error if the key is no stream

    def resume(self, spark: SparkSession) -> None:
        """Find out what earlier runs have loaded. Raises JobError if one of their files was changed."""
        log = FileLog.read(spark, self._checkpoint)
        log.require_unchanged(self._files.times)
        self._loaded = sum(count for file, count in self._files.rows.items() if file in log.files)
        self._progress = RunProgress(log.query, log.last)
        with connect(self._sink.address) as server:
            self._rows_before = self._count_rows(server, self._progress)

    def plan(self) -> Facts:
        rate = self._sink.rows_per_second
        return {
            "write": f"{self._stream} at {self._sink.address}",
            "checkpoint": f"{self._checkpoint}{' (continues)' if self._progress.query else ''}",
            "loaded_before": self._rows_before,
            "trigger": self._job.get("job.trigger", "available-now"),
            "rate": f"{rate:,} rows per second" if rate else "no limit",
        }

    def run(self, rows: DataFrame) -> None:
        """Load the rows until all are loaded, or the job is to stop. Raises the error that ended the query."""
        job, spark = self._job, rows.sparkSession
        writer = rows.writeStream.format("rstream").options(**job.options("sink"))
        writer = writer.queryName(job.get("job.name") or self._stream)
        started = time.monotonic()
        with connect(self._sink.address) as server:

            def count_rows_or_estimate(progress: RunProgress) -> int:
                try:
                    return self._count_rows(server, progress)
                except RStreamError:  # the task that waits for the server reports the error
                    return self._loaded + progress.entries

            # The batch in flight is cut: the ledger holds which of its rows are written.
            total = sum(self._files.rows.values())
            self._progress = run_batches(job, writer, cut, total, count_rows_or_estimate, self._progress)
        self._seconds = time.monotonic() - started
        if job.stop.is_requested:
            spark.stop()  # also ends a task that still writes
        else:
            FileLog.read(spark, self._checkpoint).require_unchanged(self._files.list(spark))

    def summary(self) -> Facts:
        with connect(self._sink.address) as server:
            rows_after = self._count_rows(server, self._progress)
        rows = rows_after - self._rows_before
        return {
            "entries": rows,
            "stream": self._stream,
            "loaded_before": self._rows_before,
            "left": max(sum(self._files.rows.values()) - rows_after, 0),
            "entries_per_second": round(rows / max(self._seconds, 1e-3)),
        }

    def _count_rows(self, server: Server, progress: RunProgress) -> int:
        """Return how many rows are in the stream, including those of the batch in flight."""
        in_flight = rows_written(server, self._stream, progress.query, progress.last + 1)
        return self._loaded + progress.entries + in_flight


def _check(job: Job, sink: SinkOptions) -> None:
    if job.get("sink.delivery") is not None:
        raise ConfigError("sink.delivery has no meaning here: a load writes each row once")
    for name in ("streamColumn", "idColumn"):
        if name in sink.explicit:
            raise ConfigError(f"sink.{name} has no meaning here: a load fills one stream, whose server gives the ids")
    if sink.shards is not None:
        raise ConfigError("sink.shards has no meaning here: a load keeps the order of its files in one stream")
