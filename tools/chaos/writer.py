"""The product's streaming writer as it is, with kill points around its methods and a record of what its tasks had."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from spark_streams.sink.stream_writer import StreamWriter
from spark_streams.spark.stream_arrow_writer import DataSourceStreamArrowWriter
from tools.chaos import patience
from tools.chaos.attempts import Record, new_run, recorded
from tools.chaos.query import Query
from tools.chaos.strike import Sleep, Strike, leave_a_zombie, stand_still, struck

# What the sink is given: a row's value, and the place that it was read from.
COLUMNS = ("p", "n", "source", "entry")


class ChaosWriter(DataSourceStreamArrowWriter):
    """Hands every call on. Rows are recorded before the writer has them."""

    def __init__(self, inner: StreamWriter, query: Query) -> None:
        self._inner, self._query = inner, query
        self._run = new_run()

    # -- in a task --------------------------------------------------------------------------------------------------

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        patience.limit(self._query.patience)
        strike = Strike.of(self._query, "writing")
        if strike is not None and strike.fault.kind == "zombie":
            self._leave_a_zombie(list(iterator), strike.rows)
        return self._write(struck(iterator, strike))

    def _write(self, rows: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        batch = int(context.getLocalProperty("streaming.sql.batchId") or -1)
        with recorded(self._query, batch, self._run) as record:
            return self._inner.write(_noted(rows, record))

    def _leave_a_zombie(self, batches: Sequence[pa.RecordBatch], rows: int) -> None:
        def write(sleep: Sleep) -> str:
            self._write(struck(iter(batches), sleep))
            return "it has written, or had nothing to write"

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
