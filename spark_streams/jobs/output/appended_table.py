"""A table to which micro-batches are appended: each once if it is a Delta table, otherwise at least once."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_streams.jobs.output.batch_name import query_id
from spark_streams.jobs.output.folder_columns import exists, read_columns, write_columns
from spark_streams.jobs.output.formats import DELTA, FILES
from spark_streams.jobs.output.partition_types import with_null_folders
from spark_streams.jobs.output.table_columns import TableFit, add_columns
from spark_streams.model.micro_batch import application


class AppendedTable:
    """A table of any format, by path or by name.

    Delta keeps the number of the last batch of each `txnAppId` in the transaction that appends. It skips a batch with
    that number or a lower one.
    """

    def __init__(
        self,
        spark: SparkSession,
        path: str | None,
        name: str | None,
        keys: list[str],
        kind: str,
        options: Mapping[str, str],
        transaction: str | None,
    ) -> None:
        """Set up the writer.

        path, name (of the catalog): one of them, or none if the options name the place; transaction: for Delta, the
        name of this output within the query; None: each batch at least once.
        """
        self._spark = spark
        self._path, self._name = path, name
        self._keys, self._kind, self._options = keys, kind, dict(options)
        self._transaction = transaction

    def sweep(self) -> None:
        """Do nothing. The format handles files of a killed run."""

    def columns(self) -> StructType | None:
        """Return the columns of the table, None if it does not exist or its format does not tell."""
        if self._name is not None:
            return self._spark.table(self._name).schema if self._spark.catalog.tableExists(self._name) else None
        if self._path is not None and self._kind in FILES:
            return read_columns(self._spark, self._path, self._kind, self._keys)
        if self._path is not None and self._kind == DELTA and exists(self._spark, self._path, "_delta_log"):
            return self._spark.read.format(DELTA).load(self._path).schema
        return None

    def prepare(self, fit: TableFit) -> None:
        """Add columns to the table."""
        if self._name is not None:
            add_columns(self._spark, self._name, fit.added)
        elif self._path is not None and self._kind in FILES:
            write_columns(self._spark, self._path, fit.columns)
        elif fit.added.fields:
            self._options["mergeSchema"] = "true"

    def write(self, rows: DataFrame, number: int) -> None:
        """Write one micro-batch of the query that runs on this thread."""
        if self._kind in FILES:
            rows = with_null_folders(rows, self._keys)
        writer = rows.write.format(self._kind).mode("append").options(**self._options)
        if self._transaction is not None:
            transaction_options = {
                "txnAppId": application(query_id(self._spark), self._transaction),
                "txnVersion": str(number),
            }
            writer = writer.options(**transaction_options)
        if self._keys:
            writer = writer.partitionBy(*self._keys)
        if self._name is not None:
            writer.saveAsTable(self._name)
        else:
            writer.save(self._path)
