"""[input], [sink] and [job] of a load: files, each once and in its order, become entries of one stream.

Spark's file source reads a file once. Its log (`sources/0/<n>` in the checkpoint) holds the path of each file and its
modification time. The offset of a batch holds the last `<n>` that the batch has read.
"""

from __future__ import annotations

import glob
import json
import re
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_streams.base.given_text import from_milliseconds
from spark_streams.connector.errors import ConfigError, InvalidOptionError, JobError, RStreamError, StreamMissingError
from spark_streams.connector.lag.survey import view_streams
from spark_streams.connector.options.access_options import SinkOptions
from spark_streams.connector.running.ending import cut
from spark_streams.connector.sink.batch_commit import LoadLease, rows_written
from spark_streams.connector.sink.fields import USES_OF_COLUMN, check_writable
from spark_streams.connector.spark.arrow import arrow_schema
from spark_streams.connector.spark.running_pyspark import quoted
from spark_streams.connector.wire.connect import connect
from spark_streams.connector.wire.connection import Server
from spark_streams.jobs.job import Facts, Job, JobPart
from spark_streams.jobs.job_columns import FOREIGN, JobColumns
from spark_streams.jobs.job_config import FREE
from spark_streams.jobs.output.ownership import check_checkpoint, read_text, write_text
from spark_streams.jobs.output.table_columns import SELF_DESCRIBING
from spark_streams.jobs.parts.query import RunProgress, run_batches, trigger_of

_GROWN = "changed-files"  # in the checkpoint: FileLog.grown
_LOG_OFFSET = re.compile(r'"logOffset"\s*:\s*(\d+)')


class FileLog(NamedTuple):
    """Content of a checkpoint."""

    query: str = ""  # the query's ID, "" if there is no checkpoint yet
    into: str | None = None  # what its rows are written into, None if it does not say
    last: int = -1  # number of the last committed batch
    files: Mapping[str, int] = {}  # of committed batches, with their modification times in milliseconds since the epoch
    begun: Mapping[str, int] = {}  # the same of a batch that was interrupted
    grown: Mapping[str, int] = {}  # later times of files that had changed when their batch was run again

    @classmethod
    def read(cls, spark: SparkSession, checkpoint: str) -> FileLog:
        """Read the files of a checkpoint, on any file system of Spark's."""
        if (metadata := read_text(spark, checkpoint, "metadata")) is None:
            return cls()
        into = json.loads(metadata).get("into")
        contents = _read_checkpoint(spark, checkpoint)
        committed = [Path(path).name for path in contents if path.startswith("commits/")]
        last = max((int(name) for name in committed if name.isdigit()), default=-1)
        log_offset = _LOG_OFFSET.search(contents.get(f"offsets/{last}", ""))
        last_log = -1 if log_offset is None else int(log_offset[1])
        grown: dict[str, int] = json.loads(contents.get(_GROWN, "{}"))
        files, begun = dict[str, int](), dict[str, int]()
        for text in (text for path, text in contents.items() if path.startswith("sources/")):
            for line in text.splitlines()[1:]:
                entry = json.loads(line)
                path = normalize_path(unquote(entry["path"]))
                (files if entry["batchId"] <= last_log else begun)[path] = grown.get(path, int(entry["timestamp"]))
        return cls(json.loads(metadata)["id"], into, last, files, begun, grown)

    def require_unchanged(self, listed: Mapping[str, int]) -> None:
        """Raise JobError if a file was changed after its rows were loaded. listed: the files as they are now."""
        changed = sorted(file for file, time in self.files.items() if listed.get(file, time) != time)
        if changed:
            other_files = f" (and {len(changed) - 1:,} other files)" if len(changed) > 1 else ""
            loaded_at, changed_at = (
                from_milliseconds(time).isoformat(timespec="milliseconds")
                for time in (self.files[changed[0]], listed[changed[0]])
            )
            raise JobError(
                f"file {changed[0]}{other_files} was changed at {changed_at}, after it was loaded (modification time "
                f"then: {loaded_at}). A file is read once, so rows that were added later are not loaded. Write rows "
                "that are not in the stream yet into a new file, and move the changed file out of input.path"
            )


def normalize_path(path: str) -> str:
    """Return the path in the form for comparisons. Spark writes file:/ and file:/// for the same file."""
    return re.sub("^file:/+", "file:/", path)


def _read_checkpoint(spark: SparkSession, checkpoint: str) -> dict[str, str]:
    """Return the text of each file by its path within the checkpoint. Empty if there is no checkpoint."""
    reader = spark.read.format("binaryFile").option("recursiveFileLookup", "true")
    try:
        rows = reader.load(checkpoint).select("path", "content").collect()
    except AnalysisException:
        return {}
    paths = [Path(normalize_path(row["path"])).parts for row in rows]
    top = min((path[:-1] for path in paths if path[-1] == "metadata"), key=len, default=())
    return {"/".join(path[len(top) :]): row["content"].decode() for path, row in zip(paths, rows, strict=True)}


_GLOB = frozenset("{}[]*?\\")  # characters that make a path a pattern
# One file per batch, so that rows of two files do not mix. No file is too old, however late the next one was written.
_ONE_FILE = {"maxFilesPerTrigger": "1", "maxFileAge": "36500d"}


class Files(JobPart):
    """Files to load.

    Attributes:
        times: Modification times of the files by path, in milliseconds since the epoch, after `read`.
        rows: Numbers of their rows by path, after `read`.

    Raises:
        ConfigError: `[input]` or `[schema]` cannot be used.
    """

    KEYS = {"input": {"path": str, "format": str, "schema": str, "options": FREE}, "schema": FOREIGN}
    REQUIRED = ("input.path",)

    def __init__(self, job: Job) -> None:
        self._job = job
        self._path = str(job.get("input.path"))
        self._format = str(job.get("input.format", "csv"))
        self._options = job.plain_options("input.options")
        self.times: Mapping[str, int] = {}
        self.rows: Mapping[str, int] = {}
        if "://" not in self._path and not glob.glob(self._path):
            raise ConfigError(f"input.path {self._path!r} does not exist (seen from {Path.cwd()})")
        if job.get("input.schema") and job.get("schema"):
            raise ConfigError("input.schema and [schema] contradict each other: give one of them")
        if self._format not in SELF_DESCRIBING and not job.get("input.schema") and not job.get("schema"):
            raise ConfigError(
                f"input.schema is missing: {self._format} files do not say what type their columns have; add it"
            )
        if job.get("schema"):
            JobColumns.parse(job.config)

    def read(self, spark: SparkSession) -> DataFrame:
        """Return a streaming DataFrame of all rows.

        Raises:
            InvalidOptionError: A column has a name that is reserved.
            SchemaError: A column has a type that no entry can hold.
        """
        rows = self._all_rows(spark)
        for name in USES_OF_COLUMN:
            if name in rows.schema.fieldNames():
                raise InvalidOptionError(
                    f"column {name!r}: a load fills one stream, whose server gives the ids; leave it out"
                )
        check_writable(arrow_schema(rows.schema))
        self.times = self.list(spark)
        # Spark drops a malformed row (mode DROPMALFORMED) only if it reads the column that is malformed.
        is_dropping = "dropmalformed" in (value.lower() for value in self._options.values())
        values = [F.count(quoted(name)) for name in rows.columns] if is_dropping else []
        counts = rows.groupBy("_metadata.file_path").agg(F.count("*"), *values).collect()
        self.rows = {normalize_path(unquote(row[0])): row[1] for row in counts}
        path = self._path
        if len(self.times) == 1 and _GLOB.isdisjoint(path) and next(iter(self.times)).endswith(f"/{Path(path).name}"):
            path = f"{path[:-1]}[{path[-1]}]"  # Spark's file source reads a folder or a pattern, not a single file
        option_names = {name.lower() for name in self._options}
        one_file_options = {name: value for name, value in _ONE_FILE.items() if name.lower() not in option_names}
        if "maxbytespertrigger" in option_names:
            one_file_options.pop("maxFilesPerTrigger", None)
        # One task per file, so that entries are in the order of the file.
        spark.conf.set("spark.sql.files.minPartitionNum", "1")
        spark.conf.set("spark.sql.files.maxPartitionBytes", str(2**62))
        reader = spark.readStream.format(self._format).options(**self._options, **one_file_options)
        return reader.schema(rows.schema).load(path)

    def list(self, spark: SparkSession) -> Mapping[str, int]:
        """Return the modification times of the files as they are now, by path, in milliseconds since the epoch."""
        files = spark.read.format("binaryFile").options(**self._options).load(self._path)
        rows = files.select("path", F.unix_millis("modificationTime").alias("time")).collect()
        return {normalize_path(row["path"]): row["time"] for row in rows}

    def plan(self) -> Facts:
        files = "file" if len(self.times) == 1 else "files"
        return {"read": f"{self._path} ({len(self.times):,} {self._format} {files})"}

    def _all_rows(self, spark: SparkSession) -> DataFrame:
        """Return all rows of all files."""
        job = self._job
        reader = spark.read.format(self._format).options(**self._options)
        if job.get("input.schema"):
            reader = reader.schema(job.schema("input.schema", job.get("input.schema")))
        elif job.get("schema"):
            reader = reader.schema(JobColumns.parse(job.config).struct())
        return reader.load(self._path)


class Load(JobPart):
    """Load of files into one stream. A load that was killed or stopped continues where it ended.

    Raises ConfigError if `[sink]` or `[job]` cannot be used, and RStreamError if the server does not answer, or the key
    is no stream.
    """

    KEYS = {"sink": FREE, "job": {"checkpoint": str, "name": str, "trigger": str}}
    REQUIRED = ("sink.stream", "job.checkpoint")

    def __init__(self, job: Job, files: Files) -> None:
        self._job, self._files = job, files
        self._sink = SinkOptions.parse(job.options("sink"))
        self._checkpoint = job.get("job.checkpoint")
        assert self._sink.stream is not None  # required
        self._stream = self._sink.stream
        self._into = f"{self._stream} at {self._sink.address}"
        for name in ("delivery", "streamColumn", "idColumn", "shards"):
            if name in self._sink.explicit:
                raise ConfigError(
                    f"sink.{name} has no meaning here: a load writes each row once, and in order, to one stream, whose "
                    "server gives the ids"
                )
        trigger_of(job)
        with connect(self._sink.address) as server:
            view_streams(server, [self._stream])  # raises an error if the key is no stream

    def resume(self, spark: SparkSession) -> None:
        """Find out what earlier runs have loaded. Raises JobError if one of their files was changed, or if they have
        filled another stream; StreamMissingError if it is gone; TableError for a checkpoint in a table."""
        check_checkpoint(spark, self._checkpoint)
        log = FileLog.read(spark, self._checkpoint)
        if log.query and log.into != self._into:
            raise JobError(
                f"checkpoint {self._checkpoint} has loaded files into {log.into or 'an unnamed stream'}. A load "
                f"into {self._into} would leave them out. Set another job.checkpoint: it loads all files into this "
                'stream. If it is the same stream, at a new address of its server, replace "into" in '
                f"{self._checkpoint}/metadata, and delete {self._checkpoint}/.metadata.crc"
            )
        log.require_unchanged(self._files.times)
        self._loaded = sum(count for file, count in self._files.rows.items() if file in log.files)
        self._progress, self._log = RunProgress(log.query, log.last), log
        with connect(self._sink.address) as server:
            if self._loaded and not view_streams(server, [self._stream]):
                raise StreamMissingError(
                    f"stream {self._into} is gone, and checkpoint {self._checkpoint} has loaded {self._loaded:,} rows "
                    "into it. Set another job.checkpoint, which loads all files; or create the stream to load new ones"
                )
            self._rows_before = self._count_rows(server, self._progress)

    def plan(self) -> Facts:
        rate = self._sink.rows_per_second
        return {
            "write": self._into,
            "checkpoint": f"{self._checkpoint}{' (continues)' if self._progress.query else ''}",
            "loaded_before": self._rows_before,
            "trigger": self._job.get("job.trigger", "available-now"),
            "rate": f"{rate:,} rows per second" if rate else "no limit",
        }

    def run(self, rows: DataFrame) -> None:
        """Load the rows until all are loaded, or the job is to stop. Raises the error that ended the query, TakenError
        if another run goes on."""
        spark, checkpoint = rows.sparkSession, self._checkpoint
        # As Spark writes it, which ignores the rest: of two runs with a new checkpoint, both have one ID.
        metadata = json.dumps({"id": str(uuid.uuid4()), "into": self._into})
        write_text(spark, checkpoint, "metadata", metadata, replace=False)
        lease = LoadLease(self._sink.address, json.loads(read_text(spark, checkpoint, "metadata") or "")["id"])
        try:
            with connect(self._sink.address) as server:
                lease.hold(server, [self._stream])
            self.resume(spark)  # another run may have ended since
            self._run(rows)
        finally:
            lease.release()

    def _run(self, rows: DataFrame) -> None:
        job, spark = self._job, rows.sparkSession
        # Spark reads the interrupted batch again, with what its files have now, and its log keeps their first times.
        grown = {file: self._files.times.get(file, time) for file, time in self._log.begun.items()}
        if grown != self._log.begun:
            write_text(spark, self._checkpoint, _GROWN, json.dumps({**self._log.grown, **grown}), replace=True)
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
