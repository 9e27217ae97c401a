"""[table] of a job's configuration: format, place and delivery guarantee."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, SparkSession
from pyspark.sql.types import StringType, StructType

from spark_streams.base.extras import command_for
from spark_streams.base.given_text import duration
from spark_streams.base.untyped import JavaObject
from spark_streams.connector.errors import ConfigError
from spark_streams.connector.watch.failure import one_line
from spark_streams.connector.watch.lineage.datasets import Dataset, path_dataset
from spark_streams.jobs.job_config import FREE, Config
from spark_streams.jobs.output.deltalake_table import DeltalakeTable
from spark_streams.jobs.output.owned_table import Compaction, OwnableTable, OwnedTable, TableSettings
from spark_streams.jobs.output.ownership import Claimant, NamedPlace, Owner, check_surroundings, query_id
from spark_streams.jobs.output.pyiceberg_table import PyicebergTable
from spark_streams.jobs.output.spark_tables import AppendedTable, BatchFolders, CatalogTable, folder_of_table
from spark_streams.jobs.output.table_columns import (
    DELTA,
    DELTALAKE,
    FILES,
    ONCE,
    PACKAGES,
    PYICEBERG,
    TableFit,
    changed_values,
    check_column_types,
    check_partition_types,
    compare,
    has_null_folder,
    new_table,
    partition_fields,
)

SHAPE = {
    "format": str,
    "path": str,
    "name": str,
    "catalog": str,
    "partition_by": list,
    "schema": str,
    "once": bool,
    "shared": bool,
    "compact_every": int,
    "keep": str,
    "options": FREE,
}
STRICT, MERGE = "strict", "merge"
# Formats of tables by path that can get a column. A file of CSV has columns by position.
_MERGED = tuple(kind for kind in ONCE if kind != "csv")
# Formats to which several jobs can append, each row once: a transaction names its query.
_SHARED = (DELTA, DELTALAKE, PYICEBERG)
# Options of a writer that identify the batch. Only the job sets them.
_RESERVED_OPTIONS = ("partitionoverwritemode", "txnappid", "txnversion", "path")


@dataclass(frozen=True)
class TableConfig(TableSettings):
    """Settings of a table."""

    schema: str = STRICT
    once: bool = True  # whether a batch that is run again is detected
    shared: bool = False  # whether other jobs append to it, too

    @classmethod
    def parse(cls, settings: Config, where: str, options: dict[str, str]) -> TableConfig:
        """Parse a table of the configuration. Raises ConfigError.

        settings: its keys, checked against SHAPE; options: its [options] as strings.
        """
        table = cls(
            where,
            str(settings.get("format", "parquet")).lower(),
            settings.get("path"),
            settings.get("name"),
            list(settings.get("partition_by", [])),
            options,
            settings.get("catalog"),
            schema=settings.get("schema", STRICT),
            once=settings.get("once", True),
            shared=settings.get("shared", False),
        )
        table._check_place()
        table = replace(table, compaction=_compaction(settings, where, table.kind))
        if table.shared and table.kind not in _SHARED:
            raise ConfigError(
                f"{where}.shared is for the formats {', '.join(_SHARED)}, whose transactions name the query of each "
                f"batch, not for {table.kind}: leave it out, and give each job a table of its own"
            )
        if table.schema not in (STRICT, MERGE):
            raise ConfigError(f'{where}.schema must be "strict" or "merge", not {table.schema!r}')
        if table.schema == MERGE and not table.name and table.kind not in _MERGED:
            raise ConfigError(
                f'{where}.schema = "merge" is for tables of the catalog and for the formats {", ".join(_MERGED)}, not '
                f"for {table.kind}: leave it out"
            )
        for key in options:
            if key.lower() in _RESERVED_OPTIONS:
                raise ConfigError(f"{where}.options.{key} is set by the job: leave it out")
        if table.once and table.kind not in ONCE:
            raise ConfigError(
                f"{where}.format {table.kind!r} cannot detect a batch that is run again, and would append it twice; "
                f"set {where}.format to one of {', '.join(ONCE)}, or accept duplicate rows with {where}.once = false"
            )
        return table

    def _check_place(self) -> None:
        """Raise ConfigError if path, name or catalog do not fit the format."""
        where = self.where
        if self.kind == PYICEBERG:
            if self.path:
                raise ConfigError(f"{where}.path has no meaning with format {PYICEBERG!r}: set {where}.name instead")
            if not self.catalog:
                raise ConfigError(f"{where}.catalog is missing: set it to the name of a catalog of pyiceberg")
            if "." not in (self.name or ""):
                raise ConfigError(f'{where}.name must be a namespace and a table, such as "shop.orders"')
            return
        if self.catalog:
            raise ConfigError(f"{where}.catalog is for format {PYICEBERG!r}: leave it out")
        if not self.path and not self.name and self.kind in ONCE:
            instead = "" if self.kind == DELTALAKE else f" (or {where}.name, a table of Spark's catalog)"
            raise ConfigError(f"{where}.path is missing{instead}; add it, or pass --set {where}.path=…")
        if self.path and self.name:
            raise ConfigError(f"{where}.path and {where}.name contradict each other: give one of them")
        if self.name and self.kind == DELTALAKE:
            raise ConfigError(
                f"{where}.name has no meaning with format {DELTALAKE!r}, which no catalog holds: set {where}.path"
            )

    @property
    def dataset(self) -> Dataset:
        """The table in the lineage. Its format stands for a place that only its options name."""
        if self.path is not None:
            return path_dataset(self.path)
        return Dataset("spark_catalog", self.name) if self.name else Dataset(self.kind, self.options.get("dbtable", ""))

    @property
    def in_batches(self) -> bool:
        """Whether it has a partition for each batch."""
        return self.once and self.kind in FILES

    @property
    def plan(self) -> str:
        """Line of `--check`."""
        keys = [*self.partition_by, *(["batch"] if self.in_batches else [])]
        by = f" by {', '.join(keys)}" if keys else ""
        every = f"; compacted every {self.compaction.every:,} batches" if self.compaction.every else ""
        if self.compaction.keep:
            old = "snapshots older than" if self.kind == PYICEBERG else "files that were replaced more than"
            ends = "h expire" if self.kind == PYICEBERG else "h ago are deleted"
            every += f"; {old} {self.compaction.keep:,} {ends}"
        every += "; shared with other jobs" if self.shared else ""
        return f"{self.place} as {self.kind}{by}{every}{'' if self.once else '; at least once'}"

    def check_columns(self, names: Iterable[str]) -> None:
        """Raise ConfigError if rows of these columns do not fit the table."""
        column_names = {name.lower() for name in names}
        for key in self.partition_by:
            if str(key).lower() not in column_names:
                raise ConfigError(f"{self.where}.partition_by names {key!r}, which is not among the columns")
        if self.in_batches and "batch" in column_names:
            raise ConfigError(f"{self.where}: its rows have a column 'batch', which the job itself writes: rename it")

    def check_format(self, spark: SparkSession) -> None:
        """Raise ConfigError if Spark, or this Python for deltalake and pyiceberg, cannot write the format."""
        if self.kind in PACKAGES:
            if find_spec(self.kind) is None:
                missing = f"this Python has no package {self.kind}, which writes it"
                install = f"{command_for(PACKAGES[self.kind])}, here and where tasks run"
                raise ConfigError(f"{self.where}.format {self.kind!r}: {missing}; {install}")
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

    def fit(self, spark: SparkSession, rows: StructType) -> TableFit:
        """Return how rows of these columns are fitted to the table.

        Raises TableError if they do not fit, ConfigError for a type that the format does not keep.
        """
        table = self._table(spark, None).columns()
        if table is None:
            fit = new_table(rows)
        else:
            partitions = {key.lower() for key in self.partition_by} - {field.name.lower() for field in table}
            # The folders of a table of files do not tell the types of its partitions.
            table = StructType([*table.fields, *(field for field in rows if field.name.lower() in partitions)])
            fit = compare(rows, table, f"table {self.place}", merge=self.schema == MERGE, remedy=self._remedy())
        check_column_types(self.where, self.kind, rows, fit.columns)
        zone = str(spark.conf.get("spark.sql.session.timeZone"))
        check_partition_types(self.where, self.kind, self.partition_by, fit.columns, zone)
        in_catalog = self.name is not None
        return fit._replace(changed=changed_values(self.kind, self.partition_by, fit.columns, in_catalog=in_catalog))

    def null_in(self, fit: TableFit, column: Callable[[str], Column]) -> Mapping[str, Column]:
        """Return for each column that is NOT NULL in the table whether a row has no value for it.

        column: returns the value of a column of the row.
        """
        texts = {field.name for field in partition_fields(self.partition_by, fit.columns)}
        is_text = {field.name for field in fit.columns if isinstance(field.dataType, StringType)}
        # pyiceberg keeps each text of a partition.
        folders = texts & is_text if self.kind != PYICEBERG else set()
        return {
            name: column(name).isNull() | has_null_folder(column(name)) if name in folders else column(name).isNull()
            for name in fit.required
        }

    def _remedy(self) -> str:
        target = self.name or (f"delta.`{self.place}`" if self.kind in (DELTA, DELTALAKE) else None)
        choices = [
            *([f"add it (ALTER TABLE {target} ADD COLUMNS ({{columns}}))"] if target else []),
            *([f'set {self.where}.schema = "merge", which adds it'] if self.name or self.kind in _MERGED else []),
            "or leave the column out",
        ]
        return ", ".join(choices) if len(choices) > 1 else "write to another table, or leave the column out"

    @property
    def folder(self) -> NamedPlace | None:
        """The table's folder, None if it has a name instead."""
        return None if self.path is None else NamedPlace(f"{self.where}.path", self.path)

    def place_in(self, spark: SparkSession) -> NamedPlace | None:
        """Return the table's folder, also of one in a catalog, or its name if the folder is unknown. None: neither."""
        if not self.name:
            return self.folder
        folder = None if self.kind == PYICEBERG else folder_of_table(spark, self.name)
        return NamedPlace(f"{self.where}.name", folder or f"{self.catalog or 'catalog'}://{self.name.lower()}")

    def check_owner(self, spark: SparkSession, claimant: Claimant, ours: Owner) -> str:
        """Return what `--check` says about the owner. Raises TableError for another one, or for a nested output.

        ours: the job as the owner.
        """
        # Spark reads no path of other stores that only deltalake's own options open.
        if self.folder is not None and (self.kind != DELTALAKE or self.folder.is_local):
            check_surroundings(spark, self.folder)
        if self.shared:
            return ""
        where = f"{self.where}.{'name' if self.name else 'path'}"
        return claimant.check_owner(f"table {self.place}", where, self._table(spark, None).owner(), ours)

    def open(self, spark: SparkSession, output: str, fit: TableFit, claimant: Claimant | None = None) -> OwnedTable:
        """Return the table, for rows of this fit. output: name of the output within the query; claimant: the job."""
        job = claimant or Claimant()

        def claim() -> Owner | None:
            owner = job.as_owner(query_id(spark), output)
            self.check_owner(spark, job, owner)
            return None if self.shared else owner

        return OwnedTable(self._table(spark, output if self.once else None), fit, claim)

    def _table(self, spark: SparkSession, transaction: str | None) -> OwnableTable:
        if self.kind == DELTALAKE:
            return DeltalakeTable(spark, self, transaction)
        if self.kind == PYICEBERG:
            return PyicebergTable(spark, self, transaction)
        if not self.in_batches:
            return AppendedTable(spark, self, transaction)
        return BatchFolders(spark, self) if self.name is None else CatalogTable(spark, self)


def _compaction(settings: Config, where: str, kind: str) -> Compaction:
    """Parse compact_every and keep. Raises ConfigError."""
    every, keep = settings.get("compact_every"), settings.get("keep")
    if every is not None and kind == PYICEBERG:
        raise ConfigError(
            f"{where}.compact_every: pyiceberg has no commit that replaces data files by merged ones; leave it out, "
            f"and run Iceberg's rewrite_data_files by another engine. "
            f'{where}.keep = "7d" lets the job expire snapshots'
        )
    if every is not None and kind != DELTALAKE:
        raise ConfigError(f"{where}.compact_every is for format {DELTALAKE!r}: leave it out")
    if every is None and keep is not None and kind != PYICEBERG:
        raise ConfigError(f"{where}.keep has no meaning without {where}.compact_every: leave it out")
    if every is not None and settings.get("shared"):
        raise ConfigError(
            f"{where}.compact_every has no place in a shared table: two compactions at once would double its rows; "
            "leave it out, and let one program alone compact the table"
        )
    if every is not None and every < 1:
        raise ConfigError(f"{where}.compact_every must be a number of batches, at least 1, not {every}")
    return Compaction(every or 0, None if keep is None else _hours(keep, where))


def _hours(keep: str, where: str) -> int:
    """Parse keep. Raises ConfigError."""
    try:
        hours, rest = divmod(duration(keep), 3_600_000)
    except ValueError as error:
        raise ConfigError(f"{where}.keep {error}") from None
    if rest or not hours:
        raise ConfigError(f'{where}.keep must be whole hours or days, such as "7d", not {keep!r}')
    return hours
