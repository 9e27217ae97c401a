"""Tables that Spark writes: folders of batches, tables of its catalog, and tables to which batches are appended."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from spark_streams.base.untyped import JavaObject
from spark_streams.connector.errors import TableError
from spark_streams.connector.keys import partition_name
from spark_streams.connector.spark.running_pyspark import quoted
from spark_streams.jobs.job import session_settings
from spark_streams.jobs.output import ownership
from spark_streams.jobs.output.one_task import application_of
from spark_streams.jobs.output.owned_table import OwnableTable, TableSettings
from spark_streams.jobs.output.table_columns import DELTA, FILES, TableFit, add_columns, with_null_folders

_PATTERN = re.compile(r"([\\\[\]{}*?])")  # characters that make a path a pattern


class BatchFolders(OwnableTable):
    """Folders of the batches of one query: `<path>/<key>=…/batch=b<query>-<number>`.

    A batch that is run again replaces all files of its earlier run. That run may have written more rows: a batch that
    kills its query is cut into smaller ones.
    """

    def columns(self) -> StructType | None:
        return ownership.read_columns(self._spark, self._place, self._kind, [*self._keys, "batch"])

    def owner(self) -> ownership.Owner | None:
        record = ownership.read_record(self._spark, self._place)
        return None if record is None else record.owner

    def prepare(self, fit: TableFit, owner: ownership.Owner | None) -> None:
        record = ownership.FolderRecord(fit.columns, self._kind, [*self._keys, "batch"], owner)
        ownership.write_record(self._spark, self._place, record)

    def files_of(self, number: int) -> list[str]:
        name = ownership.batch_name(self._spark, number)
        store, folders = self._matching("/".join([*["*=*"] * len(self._keys), f"batch={name}"]))
        return [file for folder in folders for file in _files_in(store, folder)]

    def sweep(self, files: Sequence[str]) -> None:
        for file in files:
            path, store = ownership.located(self._spark, file)
            if store.exists(path):  # its folder was not replaced
                store.delete(path.getParent(), True)
        mark = f"/batch={partition_name(ownership.query_id(self._spark), 0)[:-1]}"
        store, folders = self._matching(".spark-staging-*")
        for folder in folders:
            # Another program that writes into this folder has such folders, too.
            staged = [*_files_in(store, folder)]
            if staged and all(mark in file for file in staged):
                store.delete(folder, True)

    def write(self, rows: DataFrame, number: int) -> None:
        (
            with_null_folders(rows, self._keys)
            .withColumn("batch", F.lit(ownership.batch_name(self._spark, number)))
            .write.mode("overwrite")
            .format(self._kind)
            .options(**self._options)
            .option("partitionOverwriteMode", "dynamic")
            .partitionBy(*self._keys, "batch")
            .save(self._place)
        )

    def _matching(self, below: str) -> tuple[JavaObject, list[JavaObject]]:
        pattern, store = ownership.located(self._spark, _PATTERN.sub(r"\\\1", self._place), below)
        return store, [status.getPath() for status in store.globStatus(pattern) or []]


def _files_in(store: JavaObject, folder: JavaObject) -> Iterator[str]:
    files = store.listFiles(folder, True)
    while files.hasNext():
        yield str(files.next().getPath().toString())


_OVERWRITE = "spark.sql.sources.partitionOverwriteMode"


class CatalogTable(OwnableTable):
    """A table of files in Spark's catalog, partitioned by its keys and `batch`.

    The first batch creates it. A batch that is run again replaces its own partition.
    """

    def columns(self) -> StructType | None:
        if not self._spark.catalog.tableExists(self._place):
            return None
        partitions = [column.name for column in self._spark.catalog.listColumns(self._place) if column.isPartition]
        description = self._spark.sql(f"DESCRIBE TABLE EXTENDED {self._place}").collect()
        described = {row["col_name"]: row["data_type"] for row in description}
        kind = str(described.get("Provider", "")).lower()
        if (kind, partitions) != (self._kind, [*self._keys, "batch"]):
            existing_layout = f"{kind or 'another kind'} partitioned by {', '.join(partitions) or 'nothing'}"
            raise TableError(
                f"table {self._place} exists as {existing_layout}, but the job writes {self._kind} partitioned by "
                f"{', '.join([*self._keys, 'batch'])}: name another table"
            )
        return StructType([field for field in self._spark.table(self._place).schema if field.name != "batch"])

    def owner(self) -> ownership.Owner | None:
        return owner_of_table(self._spark, self._place)

    def prepare(self, fit: TableFit, owner: ownership.Owner | None) -> None:
        """Create the table, or add columns to it; and record its owner."""
        if self._spark.catalog.tableExists(self._place):
            add_columns(self._spark, self._place, fit.added)
        else:
            columns = StructType([*fit.columns, StructField("batch", StringType())])
            empty = self._spark.createDataFrame([], columns).write.format(self._kind).options(**self._options)
            empty.partitionBy(*self._keys, "batch").saveAsTable(self._place)
        if owner is not None and self.owner() != owner:
            set_owner_of_table(self._spark, self._place, owner)

    def files_of(self, number: int) -> list[str]:
        batch = F.col("batch") == ownership.batch_name(self._spark, number)
        return [unquote(file) for file in self._spark.table(self._place).where(batch).inputFiles()]

    def sweep(self, files: Sequence[str]) -> None:
        """Drop the partitions of these files if the batch has not replaced them."""
        for file in files:
            path, store = ownership.located(self._spark, file)
            if store.exists(path):
                pairs = [folder.partition("=") for folder in file.split("/")[-2 - len(self._keys) : -1]]
                # Some catalogs need all values of a partition.
                values = ", ".join(f"{quoted(unquote(key))} = {_literal(unquote(value))}" for key, _, value in pairs)
                self._spark.sql(f"ALTER TABLE {self._place} DROP IF EXISTS PARTITION ({values})")

    def write(self, rows: DataFrame, number: int) -> None:
        session = rows.sparkSession
        named = with_null_folders(rows, self._keys).withColumn(
            "batch", F.lit(ownership.batch_name(self._spark, number))
        )
        # insertInto takes no options, and columns by position.
        columns = [F.col(quoted(column)) for column in session.table(self._place).columns]
        # It replaces only partitions that it has rows for.
        with session_settings(session, {_OVERWRITE: "dynamic"}):
            named.select(*columns).write.mode("overwrite").insertInto(self._place)


def folder_of_table(spark: SparkSession, name: str) -> str | None:
    """Return the folder that a table of the catalog has or, in Spark's own catalog, will have. None: it is unknown."""
    if spark.catalog.tableExists(name):
        rows = spark.sql(f"DESCRIBE TABLE EXTENDED {name}").collect()
        return next((row["data_type"] for row in reversed(rows) if row["col_name"] == "Location"), None)
    parser: JavaObject = spark._jsparkSession.sessionState().sqlParser()
    parts: list[str] = parser.parseMultipartIdentifier(name).mkString("\n").split("\n")
    database, table = [spark.catalog.currentDatabase(), *parts][-2:]
    found = spark.catalog.databaseExists(database)
    return f"{spark.catalog.getDatabase(database).locationUri}/{table.lower()}" if found else None


def owner_of_table(spark: SparkSession, name: str) -> ownership.Owner | None:
    """Return the owner that a table of the catalog records, None without one, or without the table."""
    if not spark.catalog.tableExists(name):
        return None
    rows = spark.sql(f"SHOW TBLPROPERTIES {name}").collect()
    return ownership.Owner.from_json(next((row["value"] for row in rows if row["key"] == ownership.PROPERTY), None))


def set_owner_of_table(spark: SparkSession, name: str, owner: ownership.Owner) -> None:
    """Record the owner of a table of the catalog."""
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('{ownership.PROPERTY}' = {_literal(owner.to_json())})")


def _literal(value: str) -> str:
    """Return the value of a partition's folder as an SQL literal."""
    if value == "__HIVE_DEFAULT_PARTITION__":
        return "null"
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


class AppendedTable(OwnableTable):
    """A table of any format, by path or by name, to which batches are appended: each once if it is a Delta table,
    otherwise at least once.

    Delta keeps the number of the last batch of each `txnAppId` in the transaction that appends. It skips a batch with
    that number or a lower one.
    """

    def __init__(self, spark: SparkSession, config: TableSettings, transaction: str | None = None) -> None:
        """config: a path or a name, or none of them if the options name the place."""
        super().__init__(spark, config, transaction)
        self._path, self._name = config.path, config.name
        self._new_owner: ownership.Owner | None = None

    def columns(self) -> StructType | None:
        if self._name is not None:
            return self._spark.table(self._name).schema if self._spark.catalog.tableExists(self._name) else None
        if self._path is not None and self._kind in FILES:
            return ownership.read_columns(self._spark, self._path, self._kind, self._keys)
        if self._path is not None and self._kind == DELTA and ownership.exists(self._spark, self._path, "_delta_log"):
            return self._spark.read.format(DELTA).load(self._path).schema
        return None

    def owner(self) -> ownership.Owner | None:
        if not self._has_owner:
            return None
        if self._name is not None:
            return owner_of_table(self._spark, self._name)
        record = None if self._path is None else ownership.read_record(self._spark, self._path)
        return None if record is None else record.owner

    @property
    def _has_owner(self) -> bool:
        """Whether the table can record its owner."""
        return self._kind == DELTA or (self._kind in FILES and self._name is None)

    def prepare(self, fit: TableFit, owner: ownership.Owner | None) -> None:
        """Add columns to the table, and record its owner."""
        if self._name is not None:
            add_columns(self._spark, self._name, fit.added)
            self._new_owner = owner if self._has_owner else None
            return
        if self._path is not None and self._has_owner and (owner is not None or self._kind in FILES):
            ownership.write_record(
                self._spark, self._path, ownership.FolderRecord(fit.columns, self._kind, self._keys, owner)
            )
        if fit.added.fields and self._kind not in FILES:
            self._options["mergeSchema"] = "true"

    def write(self, rows: DataFrame, number: int) -> None:
        if self._kind in FILES:
            rows = with_null_folders(rows, self._keys)
        writer = rows.write.format(self._kind).mode("append").options(**self._options)
        if (query := application_of(self._spark, self._transaction)) is not None:
            writer = writer.options(txnAppId=query, txnVersion=str(number))
        if self._keys:
            writer = writer.partitionBy(*self._keys)
        if self._name is not None:
            writer.saveAsTable(self._name)
            if self._new_owner is not None:  # the first batch may have created the table
                set_owner_of_table(self._spark, self._name, self._new_owner)
                self._new_owner = None
        else:
            writer.save(self._path)
