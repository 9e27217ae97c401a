"""The unchanged streaming writer, with kill points around its methods and a record of its tasks' rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from spark_streams.connector.sink.writers import StreamWriter
from spark_streams.connector.spark.data_source import DataSourceStreamArrowWriter
from tools.chaos import patience
from tools.chaos.attempts import Record, new_run, record_attempt
from tools.chaos.query import Query
from tools.chaos.strike import Sleep, Strike, apply_strike, leave_a_zombie, stand_still

# Columns of the sink: a row's value, and the stream and ID that it was read from.
COLUMNS = ("p", "n", "source", "entry")


class ChaosWriter(DataSourceStreamArrowWriter):
    """Passes every call to the real writer. Rows are recorded before the writer receives them."""

    def __init__(self, inner: StreamWriter, query: Query) -> None:
        self._inner, self._query = inner, query
        self._run = new_run()

    # -- in a task --------------------------------------------------------------------------------------------------

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        patience.limit(self._query.patience)
        strike = Strike.for_task(self._query, "writing")
        if strike is not None and strike.fault.kind == "zombie":
            self._leave_a_zombie(list(iterator), strike.rows)
        return self._write(apply_strike(iterator, strike))

    def _write(self, rows: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        batch = int(context.getLocalProperty("streaming.sql.batchId") or -1)
        with record_attempt(self._query, batch, self._run) as record:
            return self._inner.write(_noted(rows, record))

    def _leave_a_zombie(self, batches: Sequence[pa.RecordBatch], rows: int) -> None:
        def write(sleep: Sleep) -> str:
            self._write(apply_strike(iter(batches), sleep))
            return "the zombie has written its rows, if it had any"

        leave_a_zombie(self._query, rows, write)

    # -- on the driver ----------------------------------------------------------------------------------------------

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        patience.limit(self._query.patience)
        stand_still(self._query, "closing", batchId)
        self._inner.commit(messages, batchId)
        stand_still(self._query, "written", batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        self._inner.abort(messages, batchId)


def _noted(batches: Iterator[pa.RecordBatch], record: Record) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in COLUMNS]
        for value in zip(*columns, strict=True):
            record.add(value)
        yield batch
