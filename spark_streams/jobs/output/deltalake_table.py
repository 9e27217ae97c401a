"""A Delta table that the Python package deltalake writes: no jar, and each micro-batch once.

The transaction that appends a batch also says, in Delta's log, which batch of which query it is. A table that says this
batch, or a later one, has it already; of two writers of one batch at the same time the table takes one.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.utils import require_minimum_pandas_version

from spark_streams.errors import StreamStateError
from spark_streams.jobs.output.batch_name import query_id
from spark_streams.spark.arrow_schema import arrow_schema

DELTALAKE = "deltalake"


def lacking() -> str:
    """What this Python lacks to write such tables, "" if nothing; the tasks' Python needs the same."""
    if importlib.util.find_spec(DELTALAKE) is None:
        return f"this Python has no package {DELTALAKE}, which writes it"
    try:
        require_minimum_pandas_version()  # mapInArrow asks for it, though it hands out Arrow
    except ImportError as error:
        return f"Spark needs pandas for it, which this Python lacks ({' '.join(str(error).split())})"
    return ""


class _Batch(NamedTuple):
    """application, number: by which the table knows it; None: nothing is said of it, and it is appended each time."""

    path: str
    keys: list[str]
    options: dict[str, str]
    application: str | None
    number: int


class DeltalakeTable:
    """By path. It is made by the first batch where it does not exist. One task writes a batch, as its rows come: nobody
    has them all in memory."""

    def __init__(
        self, spark: SparkSession, path: str, keys: list[str], options: Mapping[str, str], transaction: str | None
    ) -> None:
        """keys: the columns that partition it; options: of the store (`storage_options`); transaction: what tells this
        output from the query's others; None: each row at least once."""
        self._spark = spark
        self._path, self._keys, self._options = path, keys, dict(options)
        self._transaction = transaction

    def sweep(self) -> None:
        """Nothing: files that a killed run has begun are in no transaction, and go with Delta's VACUUM."""

    def write(self, rows: DataFrame, number: int) -> None:
        """One micro-batch of the query that runs on this thread. Raises StreamStateError where the table has other
        columns."""
        self._make_or_check(arrow_schema(rows.schema))
        application = None if self._transaction is None else f"{query_id(self._spark)}:{self._transaction}"
        batch = _Batch(self._path, self._keys, self._options, application, number)
        rows.repartition(1).mapInArrow(_writer(batch, arrow_schema(rows.schema)), "written BOOLEAN").collect()

    def _make_or_check(self, schema: pa.Schema) -> None:
        from deltalake import DeltaTable

        if not DeltaTable.is_deltatable(self._path, self._options):
            DeltaTable.create(
                self._path, schema, "ignore", partition_by=self._keys or None, storage_options=self._options
            )
        table = DeltaTable(self._path, storage_options=self._options)
        there = [field.name for field in table.schema().fields]
        by = table.metadata().partition_columns
        if sorted(there) != sorted(schema.names) or by != self._keys:
            raise StreamStateError(
                f"Delta table {self._path} has columns {', '.join(there)} by {', '.join(by) or 'nothing'}, and "
                f"the job writes {', '.join(schema.names)} by {', '.join(self._keys) or 'nothing'}: "
                "name another table, or alter this one"
            )


def _writer(batch: _Batch, schema: pa.Schema) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What the one task does; whether it has written the batch, or found it."""

    def write(pages: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
        from deltalake.exceptions import CommitFailedError

        table = DeltaTable(batch.path, storage_options=batch.options)
        if _has(table, batch):
            yield pa.record_batch({"written": [False]})
            return
        named = [] if batch.application is None else [Transaction(batch.application, batch.number)]
        # Moments are the same in any time zone, and their types are not.
        reader = pa.RecordBatchReader.from_batches(schema, (page.cast(schema) for page in pages))
        try:
            # Appended to the table as it was looked at: who has written the batch since is found out by the commit.
            write_deltalake(
                table,
                reader,
                mode="append",
                partition_by=batch.keys or None,
                storage_options=batch.options,
                commit_properties=CommitProperties(app_transactions=named),
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
