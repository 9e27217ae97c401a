"""A table to which micro-batches are appended: each once if it is a Delta table, otherwise at least once."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_streams.connector.micro_batch import application
from spark_streams.jobs.output.batch_name import query_id
from spark_streams.jobs.output.catalog_table import owner_of_table, set_owner_of_table
from spark_streams.jobs.output.folder_record import FolderRecord, read_columns, read_record, write_record
from spark_streams.jobs.output.formats import DELTA, FILES
from spark_streams.jobs.output.owner import Owner
from spark_streams.jobs.output.partition_types import with_null_folders
from spark_streams.jobs.output.store import exists
from spark_streams.jobs.output.table_columns import TableFit, add_columns


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
        self._new_owner: Owner | None = None

    def columns(self) -> StructType | None:
        """Return the columns of the table, None if it does not exist or its format does not tell."""
        if self._name is not None:
            return self._spark.table(self._name).schema if self._spark.catalog.tableExists(self._name) else None
        if self._path is not None and self._kind in FILES:
            return read_columns(self._spark, self._path, self._kind, self._keys)
        if self._path is not None and self._kind == DELTA and exists(self._spark, self._path, "_delta_log"):
            return self._spark.read.format(DELTA).load(self._path).schema
        return None

    def owner(self) -> Owner | None:
        """Return who writes the table, None if it does not say."""
        if not self._has_owner:
            return None
        if self._name is not None:
            return owner_of_table(self._spark, self._name) if self._spark.catalog.tableExists(self._name) else None
        record = None if self._path is None else read_record(self._spark, self._path)
        return None if record is None else record.owner

    @property
    def _has_owner(self) -> bool:
        """Whether the table can record its owner."""
        return self._kind == DELTA or (self._kind in FILES and self._name is None)

    def prepare(self, fit: TableFit, owner: Owner | None) -> None:
        """Add columns to the table, and record its owner."""
        if self._name is not None:
            add_columns(self._spark, self._name, fit.added)
            self._new_owner = owner if self._has_owner else None
            return
        if self._path is not None and self._has_owner and (owner is not None or self._kind in FILES):
            write_record(self._spark, self._path, FolderRecord(fit.columns, self._kind, self._keys, owner))
        if fit.added.fields and self._kind not in FILES:
            self._options["mergeSchema"] = "true"

    def sweep(self, number: int) -> None:
        """Do nothing. The format handles files of a killed run."""

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
            if self._new_owner is not None:  # the first batch may have created the table
                set_owner_of_table(self._spark, self._name, self._new_owner)
                self._new_owner = None
        else:
            writer.save(self._path)
