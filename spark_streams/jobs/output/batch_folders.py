"""Micro-batches as files, each in partitions of its own, so that one that is run again leaves every row once."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_streams.jobs.output.batch_name import batch_name
from spark_streams.model.untyped import JavaObject


class BatchFolders:
    """`<path>/<key>=…/batch=b<query>-<number>`: where the batches of one query go.

    A batch that is run again replaces what an earlier run has left of it. That may be more than it writes itself: a
    batch that kills its query is cut into smaller ones.
    """

    def __init__(
        self,
        spark: SparkSession,
        path: str,
        keys: list[str],
        kind: str = "parquet",
        options: Mapping[str, str] | None = None,
    ) -> None:
        """keys: the columns that partition it; kind: a format of files; options: of that format."""
        self._spark = spark
        self._path = path
        self._keys = keys
        self._kind = kind
        self._options = dict(options or {})
        self._first = True

    def sweep(self) -> None:
        """Remove what a killed run left half-written; readers pass over it, but it takes up room."""
        self._remove(".spark-staging-*")

    def write(self, rows: DataFrame, number: int) -> None:
        """One micro-batch of the query that runs on this thread."""
        name = batch_name(self._spark, number)
        if self._first:
            # Only the first batch of a run can be one that another run has begun.
            self._remove("/".join([*["*"] * len(self._keys), f"batch={name}"]))
            self._first = False
        (
            rows.withColumn("batch", F.lit(name))
            .write.mode("overwrite")
            .format(self._kind)
            .options(**self._options)
            .option("partitionOverwriteMode", "dynamic")
            .partitionBy(*self._keys, "batch")
            .save(self._path)
        )

    def _remove(self, below: str) -> None:
        jvm: JavaObject = self._spark.sparkContext._jvm
        found = jvm.org.apache.hadoop.fs.Path(self._path, below)
        store = found.getFileSystem(self._spark.sparkContext._jsc.hadoopConfiguration())
        for one in store.globStatus(found) or []:
            store.delete(one.getPath(), True)
