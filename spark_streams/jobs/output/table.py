"""[table] of a job's configuration, or [parquet], its older name: the format, the place, what is promised of rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark_streams.errors import ConfigError
from spark_streams.jobs.output.appended_table import AppendedTable
from spark_streams.jobs.output.batch_folders import BatchFolders
from spark_streams.jobs.output.catalog_table import CatalogTable
from spark_streams.jobs.output.deltalake_table import DELTALAKE, DeltalakeTable, lacking
from spark_streams.jobs.settings.config import FREE, Config
from spark_streams.model.untyped import JavaObject
from spark_streams.running.error_summary import one_line

SHAPE = {"format": str, "path": str, "name": str, "partition_by": list, "once": bool, "options": FREE}
PARQUET_SHAPE = {"path": str, "partition_by": list}
# Formats whose tables are folders of files, which Spark replaces partition by partition.
FILES = ("parquet", "orc", "json", "csv", "avro", "xml")
DELTA = "delta"
# Options of a writer that say which batch it is: the job's own.
_OWN = ("partitionoverwritemode", "txnappid", "txnversion", "path")


def _once() -> tuple[str, ...]:
    """The formats that have each row once, and are told by path or name where to write."""
    return (*FILES, DELTA, DELTALAKE)


class Table(Protocol):
    """What a micro-batch is written to."""

    def sweep(self) -> None: ...

    def write(self, rows: DataFrame, number: int) -> None: ...


@dataclass(frozen=True)
class TableConfig:
    """where: how the configuration calls it; one of path and name is given, where the format wants one."""

    where: str
    kind: str = "parquet"
    path: str | None = None
    name: str | None = None
    partition_by: list[str] = field(default_factory=list)
    once: bool = True
    options: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Config, where: str, options: dict[str, str]) -> TableConfig:
        """given: the keys of the table, their types as SHAPE has them; options: its [options] as texts.

        Raises ConfigError.
        """
        table = cls(
            where,
            str(given.get("format", "parquet")).lower(),
            given.get("path"),
            given.get("name"),
            list(given.get("partition_by", [])),
            given.get("once", True),
            options,
        )
        if not table.path and not table.name and table.kind in _once():
            only_path = where == "parquet" or table.kind == DELTALAKE
            instead = "" if only_path else f" (or {where}.name, a table of Spark's catalog)"
            raise ConfigError(f"{where}.path is missing{instead}; add it, or pass --set {where}.path=…")
        if table.path and table.name:
            raise ConfigError(f"{where}.path and {where}.name contradict each other: give one of them")
        if table.name and table.kind == DELTALAKE:
            raise ConfigError(
                f"{where}.name has no meaning with format {DELTALAKE!r}, which no catalog has: say {where}.path"
            )
        for key in options:
            if key.lower() in _OWN:
                raise ConfigError(f"{where}.options.{key} is the job's own to say: leave it out")
        if table.once and table.kind not in _once():
            raise ConfigError(
                f"{where}.format {table.kind!r}: nothing is known that keeps a batch that is run again from being "
                f"appended twice; say {where}.once = false to have each row at least once, or take one of "
                f"{', '.join(_once())}"
            )
        return table

    @property
    def place(self) -> str:
        """Some formats, as jdbc, are told by their options where to write."""
        return self.path or self.name or "where its options say"

    @property
    def in_batches(self) -> bool:
        """Whether it has a partition for each batch."""
        return self.once and self.kind in FILES

    @property
    def plan(self) -> str:
        """For `--check`."""
        keys = [*self.partition_by, *(["batch"] if self.in_batches else [])]
        kind = "" if self.where == "parquet" else f" as {self.kind}"
        return f"{self.place}{kind}{' by ' if keys else ''}{', '.join(keys)}{'' if self.once else '; at least once'}"

    def check_columns(self, names: Iterable[str]) -> None:
        """Whether rows of these columns fit. Raises ConfigError."""
        known = {name.lower() for name in names}
        for key in self.partition_by:
            if str(key).lower() not in known:
                raise ConfigError(f"{self.where}.partition_by names {key!r}, which is not among the columns")
        if self.in_batches and "batch" in known:
            raise ConfigError(f"{self.where}: its rows have a column 'batch', a name that the job itself uses")

    def check_format(self, spark: SparkSession) -> None:
        """Whether Spark knows the format, or the package is there that writes it. Raises ConfigError."""
        if self.kind == DELTALAKE:
            if what := lacking():
                raise ConfigError(
                    f"{self.where}.format {DELTALAKE!r}: {what}; pip install 'spark-streams[delta]', here and where "
                    "tasks run"
                )
            return
        jvm: JavaObject = spark.sparkContext._jvm
        find = jvm.org.apache.spark.sql.execution.datasources.DataSource.lookupDataSource
        try:
            find(self.kind, jvm.org.apache.spark.sql.internal.SQLConf.get())
        except (PySparkException, Py4JJavaError) as error:
            raise ConfigError(
                f"{self.where}.format {self.kind!r}: {one_line(error)} Its jar comes with [spark] "
                '"spark.jars.packages" = "group:artifact:version", or with --packages of spark-submit'
            ) from None

    def open(self, spark: SparkSession, output: str = "table") -> Table:
        """output: what tells it from other outputs of the query."""
        transaction = output if self.once else None
        if self.kind == DELTALAKE:
            return DeltalakeTable(spark, self.place, self.partition_by, self.options, transaction)
        if not self.in_batches:
            return AppendedTable(spark, self.path, self.name, self.partition_by, self.kind, self.options, transaction)
        if self.name is not None:
            return CatalogTable(spark, self.name, self.partition_by, self.kind, self.options)
        return BatchFolders(spark, self.place, self.partition_by, self.kind, self.options)
