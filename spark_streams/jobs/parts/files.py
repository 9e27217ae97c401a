"""[input] of a load: files that Spark reads, each once and in its order."""

from __future__ import annotations

import glob
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from spark_streams.connector.errors import ConfigError, InvalidOptionError
from spark_streams.connector.sink.encode.fields import USES_OF_COLUMN, check_writable
from spark_streams.connector.spark.arrow import arrow_schema
from spark_streams.jobs.file_log import list_files, rows_by_file
from spark_streams.jobs.job import Job
from spark_streams.jobs.output.formats import SELF_DESCRIBING
from spark_streams.jobs.part import Facts, Part
from spark_streams.jobs.schema.columns import FOREIGN, Columns
from spark_streams.jobs.settings.config import FREE

_GLOB = frozenset("{}[]*?\\")  # characters that make a path a pattern
# One file per batch, so that rows of two files do not mix. No file is too old, however late the next one was written.
_ONE_FILE = {"maxFilesPerTrigger": "1", "maxFileAge": "36500d"}


class Files(Part):
    """Files to load.

    Args:
        job: The job, with its configuration.

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
        self._check()

    def _check(self) -> None:
        job = self._job
        if "://" not in self._path and not glob.glob(self._path):
            raise ConfigError(f"input.path {self._path!r} does not exist (seen from {Path.cwd()})")
        if job.get("input.schema") and job.get("schema"):
            raise ConfigError("input.schema and [schema] contradict each other: give one of them")
        if self._format not in SELF_DESCRIBING and not job.get("input.schema") and not job.get("schema"):
            raise ConfigError(
                f"input.schema is missing: {self._format} files do not say what type their columns have; add it"
            )
        if job.get("schema"):
            Columns.parse(job.config)

    def read(self, spark: SparkSession) -> DataFrame:
        """Return a streaming DataFrame of all rows.

        Raises:
            InvalidOptionError: A column has a name that is reserved.
            SchemaError: A column has a type that no entry can hold.
        """
        rows = self._all_rows(spark)
        _check_columns(rows)
        self.times = self.list(spark)
        self.rows = rows_by_file(rows)
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
        """Return the modification times of the files as they are now, by path."""
        return list_files(spark, self._path, self._options)

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
            reader = reader.schema(Columns.parse(job.config).struct())
        return reader.load(self._path)


def _check_columns(rows: DataFrame) -> None:
    """Raise InvalidOptionError for reserved columns, and SchemaError for types that cannot be written."""
    for name in USES_OF_COLUMN:
        if name in rows.schema.fieldNames():
            raise InvalidOptionError(
                f"column {name!r}: a load fills one stream, whose server gives the ids; leave it out"
            )
    check_writable(arrow_schema(rows.schema))
