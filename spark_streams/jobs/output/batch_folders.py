"""Micro-batches as files. Each has its own partitions, so that a batch that is run again writes every row once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_streams.base.untyped import JavaObject
from spark_streams.connector.micro_batch import partition_name
from spark_streams.jobs.output.batch_name import batch_name, query_id
from spark_streams.jobs.output.folder_record import FolderRecord, read_columns, read_record, write_record
from spark_streams.jobs.output.owner import Owner
from spark_streams.jobs.output.partition_types import with_null_folders
from spark_streams.jobs.output.store import located
from spark_streams.jobs.output.table_columns import TableFit

_PATTERN = re.compile(r"([\\\[\]{}*?])")  # characters that make a path a pattern


class BatchFolders:
    """Folders of the batches of one query: `<path>/<key>=…/batch=b<query>-<number>`.

    A batch that is run again replaces all files of its earlier run. That run may have written more rows: a batch that
    kills its query is cut into smaller ones.
    """

    def __init__(
        self,
        spark: SparkSession,
        path: str,
        keys: list[str],
        kind: str = "parquet",
        options: Mapping[str, str] | None = None,
    ) -> None:
        """Set up the writer. keys: columns that partition the table; kind: a file format; options: of that format."""
        self._spark = spark
        self._path = path
        self._keys = keys
        self._kind = kind
        self._options = dict(options or {})

    def columns(self) -> StructType | None:
        """Return the columns of the table, None if they are not known. Raises TableError if it has another layout."""
        return read_columns(self._spark, self._path, self._kind, [*self._keys, "batch"])

    def owner(self) -> Owner | None:
        """Return who writes the table, None if it does not say."""
        record = read_record(self._spark, self._path)
        return None if record is None else record.owner

    def prepare(self, fit: TableFit, owner: Owner | None) -> None:
        """Record the columns that the table has from now on, and its owner."""
        record = FolderRecord(fit.columns, self._kind, [*self._keys, "batch"], owner)
        write_record(self._spark, self._path, record)

    def sweep(self, number: int) -> None:
        """Remove files of a killed run of this query: of its batch `number`, and those that Spark had not moved yet.

        Only the first batch of a run can have been started by an earlier run.
        """
        name = batch_name(self._spark, number)
        store, folders = self._matching("/".join([*["*=*"] * len(self._keys), f"batch={name}"]))
        for folder in folders:
            store.delete(folder, True)
        mark = f"/batch={partition_name(query_id(self._spark), 0)[:-1]}"
        store, folders = self._matching(".spark-staging-*")
        for folder in folders:
            # Another program that writes into this folder has such folders, too.
            files = [*_files_in(store, folder)]
            if files and all(mark in file for file in files):
                store.delete(folder, True)

    def write(self, rows: DataFrame, number: int) -> None:
        """Write one micro-batch of the query that runs on this thread."""
        (
            with_null_folders(rows, self._keys)
            .withColumn("batch", F.lit(batch_name(self._spark, number)))
            .write.mode("overwrite")
            .format(self._kind)
            .options(**self._options)
            .option("partitionOverwriteMode", "dynamic")
            .partitionBy(*self._keys, "batch")
            .save(self._path)
        )

    def _matching(self, below: str) -> tuple[JavaObject, list[JavaObject]]:
        pattern, store = located(self._spark, _PATTERN.sub(r"\\\1", self._path), below)
        return store, [status.getPath() for status in store.globStatus(pattern) or []]


def _files_in(store: JavaObject, folder: JavaObject) -> Iterator[str]:
    files = store.listFiles(folder, True)
    while files.hasNext():
        yield str(files.next().getPath().toString())
