"""A Delta table that the Python package deltalake writes: no jar, and each micro-batch once.

The transaction that appends a batch also records in Delta's log the query and the number of the batch. If the log holds
this batch or a later one, the batch is skipped. If two tasks write one batch at the same time, one of them commits.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.utils import require_minimum_pandas_version
from pyspark.sql.types import StructType

from spark_streams.errors import TableError
from spark_streams.jobs.output.batch_name import query_id
from spark_streams.jobs.output.formats import DELTALAKE
from spark_streams.jobs.output.table_columns import TableFit
from spark_streams.spark.arrow_schema import arrow_schema


def missing_package() -> str:
    """Return an error text if this Python lacks a package to write such tables, else "". Tasks need the same ones."""
    if importlib.util.find_spec(DELTALAKE) is None:
        return f"this Python has no package {DELTALAKE}, which writes it"
    try:
        require_minimum_pandas_version()  # mapInArrow needs pandas, although it passes Arrow data
    except ImportError as error:
        return f"Spark needs pandas for it, which this Python lacks ({' '.join(str(error).split())})"
    return ""


class _Batch(NamedTuple):
    """A batch to write. application, number: its identity in Delta's log; application None: it is always appended."""

    path: str
    keys: list[str]
    options: dict[str, str]
    application: str | None
    number: int


class DeltalakeTable:
    """A Delta table by path. The first batch creates it if it does not exist.

    One task writes a batch as a stream of rows, so no process holds them all in memory.
    """

    def __init__(
        self, spark: SparkSession, path: str, keys: list[str], options: Mapping[str, str], transaction: str | None
    ) -> None:
        """Set up the writer.

        keys: the columns that partition the table; options: of the store (`storage_options`); transaction: name of this
        output within the query; None: each row at least once.
        """
        self._spark = spark
        self._path, self._keys, self._options = path, keys, dict(options)
        self._transaction = transaction

    def sweep(self) -> None:
        """Do nothing. Files of a killed run are in no transaction, and Delta's VACUUM deletes them."""

    def columns(self) -> StructType | None:
        """Return the columns of the table, None if it does not exist. Raises TableError if it has other partitions."""
        from deltalake import DeltaTable

        if not DeltaTable.is_deltatable(self._path, self._options):
            return None
        table = DeltaTable(self._path, storage_options=self._options)
        partition_columns = table.metadata().partition_columns
        if partition_columns != self._keys:
            raise TableError(
                f"Delta table {self._path} is partitioned by {', '.join(partition_columns) or 'nothing'}, but the job "
                f"writes it by {', '.join(self._keys) or 'nothing'}: set partition_by to the table's, or name another "
                "table"
            )
        return StructType.fromJson(json.loads(table.schema().to_json()))

    def prepare(self, fit: TableFit) -> None:
        """Create the table, or add columns to it."""
        from deltalake import DeltaTable, Schema

        DeltaTable.create(
            self._path,
            arrow_schema(fit.columns),
            "ignore",
            partition_by=self._keys or None,
            storage_options=self._options,
        )
        if fit.added.fields:
            table = DeltaTable(self._path, storage_options=self._options)
            table.alter.add_columns(Schema.from_json(fit.added.json()).fields)

    def write(self, rows: DataFrame, number: int) -> None:
        """Write one micro-batch of the query that runs on this thread."""
        application = None if self._transaction is None else f"{query_id(self._spark)}:{self._transaction}"
        batch = _Batch(self._path, self._keys, self._options, application, number)
        rows.repartition(1).mapInArrow(_writer(batch, arrow_schema(rows.schema)), "written BOOLEAN").collect()


def _writer(batch: _Batch, schema: pa.Schema) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that one task runs. Its column `written` is false if the table holds the batch already."""

    def write(pages: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
        from deltalake.exceptions import CommitFailedError

        table = DeltaTable(batch.path, storage_options=batch.options)
        if _has(table, batch):
            yield pa.record_batch({"written": [False]})
            return
        transactions = [] if batch.application is None else [Transaction(batch.application, batch.number)]
        # Spark's and Delta's timestamp types may name different time zones for the same value.
        reader = pa.RecordBatchReader.from_batches(schema, (page.cast(schema) for page in pages))
        try:
            # The commit fails if another task has written the batch since the table was loaded.
            write_deltalake(
                table,
                reader,
                mode="append",
                partition_by=batch.keys or None,
                storage_options=batch.options,
                commit_properties=CommitProperties(app_transactions=transactions),
            )
        except CommitFailedError:
            if not _has(DeltaTable(batch.path, storage_options=batch.options), batch):
                raise
        yield pa.record_batch({"written": [True]})

    return write


def _has(table: object, batch: _Batch) -> bool:
    if batch.application is None:
        return False
    last: int | None = table.transaction_version(batch.application)  # type: ignore[attr-defined]
    return last is not None and last >= batch.number
