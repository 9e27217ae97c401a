"""Micro-batches as files. Each has its own partitions, so that a batch that is run again writes every row once."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_streams.jobs.output.batch_name import batch_name
from spark_streams.jobs.output.folder_columns import read_columns, write_columns
from spark_streams.jobs.output.partition_types import with_null_folders
from spark_streams.jobs.output.table_columns import TableFit
from spark_streams.model.untyped import JavaObject


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
        self._first = True

    def sweep(self) -> None:
        """Remove staging files of a killed run. Readers ignore them, but they use disk space."""
        self._remove(".spark-staging-*")

    def columns(self) -> StructType | None:
        """Return the columns of the table, None if they are not known."""
        return read_columns(self._spark, self._path, self._kind, [*self._keys, "batch"])

    def prepare(self, fit: TableFit) -> None:
        """Keep the columns that the table has from now on."""
        write_columns(self._spark, self._path, fit.columns)

    def write(self, rows: DataFrame, number: int) -> None:
        """Write one micro-batch of the query that runs on this thread."""
        name = batch_name(self._spark, number)
        if self._first:
            # Only the first batch of a run can have been started by an earlier run.
            self._remove("/".join([*["*"] * len(self._keys), f"batch={name}"]))
            self._first = False
        (
            with_null_folders(rows, self._keys)
            .withColumn("batch", F.lit(name))
            .write.mode("overwrite")
            .format(self._kind)
            .options(**self._options)
            .option("partitionOverwriteMode", "dynamic")
            .partitionBy(*self._keys, "batch")
            .save(self._path)
        )

    def _remove(self, below: str) -> None:
        jvm: JavaObject = self._spark.sparkContext._jvm
        pattern = jvm.org.apache.hadoop.fs.Path(self._path, below)
        store = pattern.getFileSystem(self._spark.sparkContext._jsc.hadoopConfiguration())
        for folder in store.globStatus(pattern) or []:
            store.delete(folder.getPath(), True)
