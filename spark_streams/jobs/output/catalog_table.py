"""A table of files in Spark's catalog. A micro-batch that is run again replaces its own partition."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from spark_streams.connector.errors import TableError
from spark_streams.connector.spark.running_pyspark import quoted
from spark_streams.jobs.output.batch_name import batch_name
from spark_streams.jobs.output.owner import PROPERTY, Owner
from spark_streams.jobs.output.partition_types import with_null_folders
from spark_streams.jobs.output.table_columns import TableFit, add_columns

_OVERWRITE = "spark.sql.sources.partitionOverwriteMode"


class CatalogTable:
    """A table partitioned by its keys and `batch`. The first batch creates it if it does not exist."""

    def __init__(self, spark: SparkSession, name: str, keys: list[str], kind: str, options: Mapping[str, str]) -> None:
        """Set up the writer.

        keys: the columns that partition the table; kind: a file format; options: of that format, for a new table.
        """
        self._spark = spark
        self._name = name
        self._keys = keys
        self._kind = kind
        self._options = dict(options)

    def columns(self) -> StructType | None:
        """Return the columns of the table, None if it does not exist.

        Raises TableError if it exists with another format or other partitions.
        """
        if not self._spark.catalog.tableExists(self._name):
            return None
        partitions = [column.name for column in self._spark.catalog.listColumns(self._name) if column.isPartition]
        described = {row["col_name"]: row["data_type"] for row in self._describe().collect()}
        kind = str(described.get("Provider", "")).lower()
        if (kind, partitions) != (self._kind, [*self._keys, "batch"]):
            existing_layout = f"{kind or 'another kind'} partitioned by {', '.join(partitions) or 'nothing'}"
            raise TableError(
                f"table {self._name} exists as {existing_layout}, but the job writes {self._kind} partitioned by "
                f"{', '.join([*self._keys, 'batch'])}: name another table"
            )
        return StructType([field for field in self._spark.table(self._name).schema if field.name != "batch"])

    def owner(self) -> Owner | None:
        """Return who writes the table, None if it does not say."""
        return owner_of_table(self._spark, self._name) if self._spark.catalog.tableExists(self._name) else None

    def prepare(self, fit: TableFit, owner: Owner | None) -> None:
        """Create the table, or add columns to it; and record its owner."""
        if self._spark.catalog.tableExists(self._name):
            add_columns(self._spark, self._name, fit.added)
        else:
            columns = StructType([*fit.columns, StructField("batch", StringType())])
            empty = self._spark.createDataFrame([], columns).write.format(self._kind).options(**self._options)
            empty.partitionBy(*self._keys, "batch").saveAsTable(self._name)
        if owner is not None and self.owner() != owner:
            set_owner_of_table(self._spark, self._name, owner)

    def sweep(self, number: int) -> None:
        """Drop the partitions that a killed run of this query has written for its batch `number`.

        Only the first batch of a run can have been started by an earlier run.
        """
        self._drop(self._spark, batch_name(self._spark, number))

    def write(self, rows: DataFrame, number: int) -> None:
        """Write one micro-batch of the query that runs on this thread."""
        session = rows.sparkSession
        named = with_null_folders(rows, self._keys).withColumn("batch", F.lit(batch_name(self._spark, number)))
        # insertInto takes no options, and columns by position.
        columns = [F.col(quoted(column)) for column in session.table(self._name).columns]
        with _replacing_partitions(session):
            named.select(*columns).write.mode("overwrite").insertInto(self._name)

    def _drop(self, session: SparkSession, batch: str) -> None:
        """Drop the partitions of a batch. Some catalogs need all values of a partition, so all are named."""
        partitions = session.sql(f"SHOW PARTITIONS {self._name} PARTITION (batch = {_literal(batch)})").collect()
        for partition in (row["partition"] for row in partitions):
            pairs = [pair.partition("=") for pair in partition.split("/")]
            values = ", ".join(f"{quoted(unquote(key))} = {_literal(unquote(value))}" for key, _, value in pairs)
            session.sql(f"ALTER TABLE {self._name} DROP IF EXISTS PARTITION ({values})")

    def _describe(self) -> DataFrame:
        return self._spark.sql(f"DESCRIBE TABLE EXTENDED {self._name}")


def owner_of_table(spark: SparkSession, name: str) -> Owner | None:
    """Return the owner that a table of the catalog records, None without one."""
    rows = spark.sql(f"SHOW TBLPROPERTIES {name}").collect()
    return Owner.from_json(next((row["value"] for row in rows if row["key"] == PROPERTY), None))


def set_owner_of_table(spark: SparkSession, name: str, owner: Owner) -> None:
    """Record the owner of a table of the catalog."""
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('{PROPERTY}' = {_literal(owner.to_json())})")


@contextlib.contextmanager
def _replacing_partitions(session: SparkSession) -> Iterator[None]:
    """Make an overwrite replace only partitions that it has rows for; restore the session's setting at the end."""
    before = session.conf.get(_OVERWRITE, None)
    session.conf.set(_OVERWRITE, "dynamic")
    try:
        yield
    finally:
        session.conf.unset(_OVERWRITE) if before is None else session.conf.set(_OVERWRITE, before)


def _literal(value: str) -> str:
    """Return a partition's value, as SHOW PARTITIONS prints it, as an SQL literal."""
    if value == "__HIVE_DEFAULT_PARTITION__":
        return "null"
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
