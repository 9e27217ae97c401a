"""[table] of an archive: the entries of streams by date, with every byte of their fields."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_streams.connector.errors import ConfigError
from spark_streams.connector.watch.lineage.datasets import Dataset
from spark_streams.jobs.exact_fields import exact_binary, exact_text
from spark_streams.jobs.job import Job
from spark_streams.jobs.output.outputs import checked_fit, main_table
from spark_streams.jobs.output.owner import Claimant
from spark_streams.jobs.output.places import check_places, other_places
from spark_streams.jobs.output.table import SHAPE as TABLE
from spark_streams.jobs.output.table import TableConfig, Writer
from spark_streams.jobs.output.table_columns import TableFit
from spark_streams.jobs.part import Facts, Written

_FIELDS = ("text", "binary")
# ORC's writer sorts the fields of a map, and keeps one value per name.
_ONE_VALUE_OF_A_NAME = ("orc",)


class Archive(Written):
    """Table of entries, by date.

    Args:
        job: The job, with its configuration.

    Attributes:
        SCHEMA: What the source must read.

    Raises:
        ConfigError: `[table]` is missing or cannot hold an entry.
    """

    KEYS = {
        "table": {**{key: kind for key, kind in TABLE.items() if key not in ("partition_by", "schema")}, "fields": str}
    }
    SCHEMA = "`_stream` STRING, `_id` STRING, `_timestamp` TIMESTAMP, `_fields` MAP<BINARY, BINARY>"

    def __init__(self, job: Job) -> None:
        self._job = job
        self._table, self._fields = _table(job)
        if self._table.folder is not None:
            check_places([self._table.folder], other_places(job.config, job.config_file))
        self._fit: TableFit | None = None
        self._writer: Writer | None = None

    def plan(self) -> Facts:
        changes = self._fit.plan if self._fit else ""
        return {
            self._table.kind: "; ".join(filter(None, (self._table.plan, f"fields as {self._fields}", changes))),
        }

    def rows(self, entries: DataFrame) -> DataFrame:
        """Return the rows of the table.

        Raises:
            ConfigError: Spark cannot write the format.
            TableError: The rows do not fit a table that exists, or it belongs to another query.
        """
        columns = [F.col(f"_{name}").alias(name) for name in ("stream", "id", "timestamp")]
        columns.append(_exact(F.col("_fields"), self._fields, self._table.kind).alias("fields"))
        date = F.to_date(F.to_utc_timestamp("_timestamp", F.current_timezone())).alias("date")
        rows = entries.select(*columns, date)
        self._spark = entries.sparkSession
        self._claimant = Claimant.of_job(self._job, self._spark)
        self._fit = checked_fit(self._table, "table", self._spark, rows.schema, self._claimant)
        return rows

    def datasets(self) -> Iterable[Dataset | None]:
        return [self._table.dataset]

    def open(self, streams: Sequence[str]) -> None:
        assert self._fit is not None
        self._writer = self._table.open(self._spark, "table", self._fit, self._claimant)

    def write(self, rows: DataFrame, number: int) -> None:
        """Write one micro-batch. If it is run again, it replaces its rows. number: of the batch."""
        assert self._writer is not None
        self._writer.write(rows, number)

    def summary(self) -> Facts:
        return {self._table.kind: self._table.place}


def _table(job: Job) -> tuple[TableConfig, str]:
    """Return the table, and how it holds fields: "text" or "binary". Raises ConfigError."""
    table = main_table(job.config)
    if table is None:
        raise ConfigError("table.path is missing; add it, or pass --set table.path=…")
    if table.kind in ("csv", "text"):
        raise ConfigError(
            f"{table.where}.format {table.kind!r} cannot hold the map of an entry's fields: set another format"
        )
    fields = job.get("table.fields", "text")
    if fields not in _FIELDS:
        raise ConfigError(f'{table.where}.fields must be "text" or "binary", not {fields!r}')
    if fields == "binary" and table.kind == "json":
        raise ConfigError(
            f'{table.where}.format "json" cannot hold names of fields as bytes: '
            f'set {table.where}.fields = "text", which keeps every byte, and another {table.where}.path'
        )
    return replace(table, partition_by=["date"]), fields


def _exact(entry: Column, fields: str, kind: str) -> Column:
    """Return the column `fields` of the table, which keeps every byte of an entry."""
    if fields == "text":
        return exact_text(entry)
    return exact_binary(entry) if kind in _ONE_VALUE_OF_A_NAME else entry
