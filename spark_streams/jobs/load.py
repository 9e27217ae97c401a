"""Files into a stream: one entry per row, in the order of the file. Columns become fields; nulls are left out.

A load that was killed or stopped continues where it ended, and writes each row once.
"""

from __future__ import annotations

import glob
import time
from pathlib import Path

from pyspark.sql import DataFrame

from spark_streams.errors import ConfigError, InvalidOptionError, RStreamError
from spark_streams.jobs.file_log import FileLog, list_files, rows_by_file
from spark_streams.jobs.job import Job, Program
from spark_streams.jobs.micro_batches import RunProgress, run_batches, trigger_of
from spark_streams.jobs.output.formats import SELF_DESCRIBING
from spark_streams.jobs.schema.columns import FOREIGN, Columns
from spark_streams.jobs.settings.config import FREE
from spark_streams.monitor.groups import view_streams
from spark_streams.options.sink_options import SinkOptions
from spark_streams.running.ending import cut
from spark_streams.sink.encode.fields import USES_OF_COLUMN, check_writable
from spark_streams.sink.ledger.batch_commit import rows_written
from spark_streams.spark.arrow_schema import arrow_schema
from spark_streams.wire.connect import connect
from spark_streams.wire.connection.server import Server

SHAPE = {
    "input": {"path": str, "format": str, "schema": str, "options": FREE},
    "schema": FOREIGN,
    "sink": FREE,
    "job": {"checkpoint": str, "name": str, "trigger": str},
}
_GLOB = frozenset("{}[]*?\\")  # characters that make a path a pattern
# One file per batch, so that rows of two files do not mix. No file is too old, however late the next one was written.
_ONE_FILE = {"maxFilesPerTrigger": "1", "maxFileAge": "36500d"}


def body(job: Job) -> None:
    sink = SinkOptions.parse(job.options("sink"))
    stream, path, checkpoint = sink.stream, job.get("input.path"), job.get("job.checkpoint")
    assert stream is not None  # required
    _check(job, sink, path)
    trigger_of(job)
    with connect(sink.address) as server:
        view_streams(server, [stream])  # raises an error if the key is no stream
        spark = job.session()
        rows = _rows(job)
        _check_columns(rows)
        files = list_files(spark, path, job.plain_options("input.options"))
        log = FileLog.read(spark, checkpoint)
        log.require_unchanged(files)
        counts = rows_by_file(rows)
        loaded = sum(count for file, count in counts.items() if file in log.files)

        def count_rows(server: Server, progress: RunProgress) -> int:
            """Return how many rows are in the stream, including those of the batch in flight."""
            return loaded + progress.entries + rows_written(server, stream, progress.query, progress.last + 1)

        def count_rows_or_estimate(progress: RunProgress) -> int:
            try:
                return count_rows(server, progress)
            except RStreamError:  # the task that waits for the server reports the error
                return loaded + progress.entries

        progress = RunProgress(log.query, log.last)
        rows_before = count_rows(server, progress)
        job.plan(
            read=f"{path} ({len(files):,} {_format(job)} {'file' if len(files) == 1 else 'files'})",
            write=f"{stream} at {sink.address}",
            checkpoint=f"{checkpoint}{' (continues)' if log.query else ''}",
            loaded_before=rows_before,
            trigger=job.get("job.trigger", "available-now"),
            rate=f"{sink.rows_per_second:,} rows per second" if sink.rows_per_second else "no limit",
        )
        writer = _stream(job, rows, files).writeStream.format("rstream").options(**job.options("sink"))
        writer = writer.queryName(job.get("job.name") or stream)
        total, started = sum(counts.values()), time.monotonic()
        # The batch in flight is cut: the ledger holds which of its rows are written.
        progress = run_batches(job, writer, cut, total, count_rows_or_estimate, progress)
        seconds = time.monotonic() - started
        if job.stop.is_requested:
            spark.stop()  # also ends a task that still writes
        else:
            files = list_files(spark, path, job.plain_options("input.options"))
            FileLog.read(spark, checkpoint).require_unchanged(files)
    with connect(sink.address) as server:
        rows_after = count_rows(server, progress)
    job.summarize(
        entries=rows_after - rows_before,
        stream=stream,
        loaded_before=rows_before,
        left=max(total - rows_after, 0),
        entries_per_second=round((rows_after - rows_before) / max(seconds, 1e-3)),
    )


def _format(job: Job) -> str:
    return str(job.get("input.format", "csv"))


def _check(job: Job, sink: SinkOptions, path: str) -> None:
    """Check the configuration. Raises ConfigError."""
    file_format = _format(job)
    if "://" not in path and not glob.glob(path):
        raise ConfigError(f"input.path {path!r} does not exist (seen from {Path.cwd()})")
    if job.get("input.schema") and job.get("schema"):
        raise ConfigError("input.schema and [schema] contradict each other: give one of them")
    if file_format not in SELF_DESCRIBING and not job.get("input.schema") and not job.get("schema"):
        raise ConfigError(
            f"input.schema is missing: {file_format} files do not say what type their columns have; add it"
        )
    if job.get("schema"):
        Columns.parse(job.config)
    if job.get("sink.delivery") is not None:
        raise ConfigError("sink.delivery has no meaning here: a load writes each row once")
    for name in ("streamColumn", "idColumn"):
        if name in sink.explicit:
            raise ConfigError(f"sink.{name} has no meaning here: a load fills one stream, whose server gives the ids")
    if sink.shards is not None:
        raise ConfigError("sink.shards has no meaning here: a load keeps the order of its files in one stream")


def _check_columns(rows: DataFrame) -> None:
    """Raise InvalidOptionError for reserved columns, and SchemaError for types that cannot be written."""
    for name in USES_OF_COLUMN:
        if name in rows.schema.fieldNames():
            raise InvalidOptionError(
                f"column {name!r}: a load fills one stream, whose server gives the ids; leave it out"
            )
    check_writable(arrow_schema(rows.schema))


def _rows(job: Job) -> DataFrame:
    """Return all rows of all files."""
    assert job.spark is not None
    reader = job.spark.read.format(_format(job)).options(**job.plain_options("input.options"))
    if job.get("input.schema"):
        reader = reader.schema(job.schema("input.schema", job.get("input.schema")))
    elif job.get("schema"):
        reader = reader.schema(Columns.parse(job.config).struct())
    return reader.load(job.get("input.path"))


def _stream(job: Job, rows: DataFrame, files: dict[str, int]) -> DataFrame:
    """Return a streaming DataFrame of all rows."""
    assert job.spark is not None
    path = str(job.get("input.path"))
    if len(files) == 1 and _GLOB.isdisjoint(path) and next(iter(files)).endswith(f"/{Path(path).name}"):
        path = f"{path[:-1]}[{path[-1]}]"  # Spark's file source reads a folder or a pattern, not a single file
    reader_options = job.plain_options("input.options")
    option_names = {name.lower() for name in reader_options}
    one_file_options = {name: value for name, value in _ONE_FILE.items() if name.lower() not in option_names}
    if "maxbytespertrigger" in option_names:
        one_file_options.pop("maxFilesPerTrigger", None)
    # One task per file, so that entries are in the order of the file.
    job.spark.conf.set("spark.sql.files.minPartitionNum", "1")
    job.spark.conf.set("spark.sql.files.maxPartitionBytes", str(2**62))
    return (
        job.spark.readStream.format(_format(job))
        .options(**reader_options, **one_file_options)
        .schema(rows.schema)
        .load(path)
    )


PROGRAM = Program(__doc__, SHAPE, ["input.path", "sink.stream", "job.checkpoint"], body)
