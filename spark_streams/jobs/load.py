"""Files into a stream: one entry a row, a field a column, missing values left out, in the order of the file; several
files in the order of their names. A load that was killed or stopped goes on where it was, and each row is there once.
"""

from __future__ import annotations

import glob
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession

from spark_streams.errors import ConfigError, RStreamError
from spark_streams.jobs.config import FREE
from spark_streams.jobs.job import Job, Program
from spark_streams.jobs.schema.columns import FOREIGN, Columns
from spark_streams.monitor.groups import view_streams
from spark_streams.monitor.terminal.progress_bar import Bar
from spark_streams.option_tables import SINK
from spark_streams.options import Options
from spark_streams.sink.counts import Count, counts_of, forget_counts
from spark_streams.sink.load_writer import LoadDataSource, check_loadable
from spark_streams.wire.connect import connect
from spark_streams.wire.server import Server

SHAPE = {
    "input": {"path": str, "format": str, "schema": str, "options": FREE},
    "load": {"name": str, "rate": int, "again": bool},
    "schema": FOREIGN,
    "sink": FREE,
}
_SELF_DESCRIBING = ("parquet", "orc", "avro")


def body(job: Job) -> None:
    sink = job.check_options("sink", SINK, "sink")
    stream = sink["stream"]
    path, kind = job.get("input.path"), _format(job)
    name = job.get("load.name", path)
    _check(job, sink, path, kind)
    with connect(sink.address) as server:
        view_streams(server, [stream])  # that it is one
        earlier = _earlier(job, server, stream, name)
        spark = job.session()
        spark.dataSource.register(LoadDataSource)
        rows = _read(job)
        check_loadable(rows.schema)
        files = sorted(unquote(file) for file in rows.inputFiles())
        before = _of(files, earlier)
        rate = job.get("load.rate")
        job.plan(
            read=f"{path} ({len(files):,} {kind} {'file' if len(files) == 1 else 'files'})",
            write=f"{stream} at {sink.address}",
            name=name,
            loaded_before=before,
            rate=f"{rate:,} entries a second" if rate else "as fast as it goes",
        )
        total = rows.count()
        with Bar(job.console, "load", total) as bar:
            began = time.monotonic()
            with _Watching(job, spark, bar, lambda: _of(files, counts_of(server, stream, name))):
                _load_all(job, spark, files, name)
            if job.stop.asked:
                spark.stop()  # and with it a task that still writes
            seconds = time.monotonic() - began
            now = _of(files, counts_of(server, stream, name))
            bar.at(now)
    entries = now - before
    job.say(
        entries=entries,
        stream=stream,
        loaded_before=before,
        left=max(total - now, 0),
        entries_per_second=round(entries / max(seconds, 1e-3)),
    )


def _format(job: Job) -> str:
    return str(job.get("input.format", "csv"))


def _earlier(job: Job, server: Server, stream: str, name: str) -> dict[str, Count]:
    """By file what earlier runs of this load have loaded; nothing, where it is to be loaded again."""
    counts = {} if job.get("load.again", False) else counts_of(server, stream, name)
    if not counts and not job.check:
        forget_counts(server, stream, name)  # as it is wished, or of a stream that was deleted since
    return counts


def _of(files: Sequence[str], counts: Mapping[str, Count]) -> int:
    """How many rows of these files are loaded."""
    return sum(counts[file].rows for file in files if file in counts)


def _check(job: Job, sink: Options, path: str, kind: str) -> None:
    """Raises ConfigError."""
    if "://" not in path and not glob.glob(path):
        raise ConfigError(f"input.path {path!r} does not exist (seen from {Path.cwd()})")
    if job.get("input.schema") and job.get("schema"):
        raise ConfigError("input.schema and [schema] contradict each other: give one of them")
    if kind not in _SELF_DESCRIBING and not job.get("input.schema") and not job.get("schema"):
        raise ConfigError(f"input.schema is missing: {kind} files do not say what their columns are")
    if job.get("schema"):
        Columns.of(job.config)
    if job.get("load.rate", 1) < 1:
        raise ConfigError("load.rate must be at least 1")
    if job.get("sink.delivery") is not None:
        raise ConfigError("sink.delivery has no meaning here: a load writes each row once")
    for name in ("streamColumn", "idColumn"):
        if sink[name] is not None:
            raise ConfigError(f"sink.{name} has no meaning here: a load fills one stream, whose server gives the ids")
    if sink["shards"] is not None:
        raise ConfigError("sink.shards has no meaning here: a load keeps the order of its files in one stream")


def _read(job: Job, file: str | None = None) -> DataFrame:
    """One file, or all of them. Also of one file, the folders above it may be columns (`month=1`)."""
    assert job.spark is not None
    path = job.get("input.path")
    reader = job.spark.read.format(_format(job)).options(**job.plain_options("input.options"))
    if job.get("input.schema"):
        reader = reader.schema(job.schema("input.schema", job.get("input.schema")))
    elif job.get("schema"):
        reader = reader.schema(Columns.of(job.config).struct())
    if file is not None and Path(path).is_dir() and job.get("input.options.basePath") is None:
        reader = reader.option("basePath", path)
    return reader.load(path if file is None else file)


def _load_all(job: Job, spark: SparkSession, files: Sequence[str], name: str) -> None:
    """One file after the other. Ends early where the job is asked to stop."""
    # A file is one task: a stream has one order, and it is the file's, whatever machine reads it.
    spark.conf.set("spark.sql.files.minPartitionNum", "1")
    spark.conf.set("spark.sql.files.maxPartitionBytes", str(2**62))
    for file in files:
        if job.stop.asked:
            break
        load = json.dumps({"name": name, "input": file, "rate": job.get("load.rate")})
        writer = _read(job, file).write.format("rstream-load").mode("append")
        try:
            writer.options(**job.options("sink"), load=load).save()
        except Exception:
            if not job.stop.asked:
                raise


class _Watching:
    """Beside the load: the bar moves, and a job that is asked to stop ends between two transactions."""

    def __init__(self, job: Job, spark: SparkSession, bar: Bar, count: Callable[[], int]) -> None:
        self._job, self._spark, self._bar, self._count = job, spark, bar, count
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        shown = True
        while not self._over.wait(0.2):
            if self._job.stop.asked:
                self._spark.sparkContext.cancelAllJobs()
            elif shown:
                try:
                    self._bar.at(self._count())
                except RStreamError:
                    shown = False  # the task, which is patient, will say what is wrong with the server


PROGRAM = Program(__doc__, SHAPE, ["input.path", "sink.stream"], body)
