"""The streaming writer that Spark drives: a micro-batch is written once, whoever runs it and however often."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from spark_streams.options import Options
from spark_streams.sink.batch_writer import BatchWriter, Written
from spark_streams.sink.ledger import Batch


class StreamWriter(DataSourceStreamArrowWriter):
    """format("rstream") for writeStream. Output modes append and update: every row is an entry.

    Spark makes one on the driver for each execution of a micro-batch. Query and batch stand in the task's properties
    (FACTS S8), so a replay by another driver finds what this one has written.
    """

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        self._rows = BatchWriter(options, schema, overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self._rows.write_part_of(self._batch(), iterator)

    def _batch(self) -> Batch:
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
        number = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
        if query is None or number is None:
            return Batch.of_job(self._rows.run)
        return Batch(query, int(number), self._rows.run, expires=False)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """All tasks have ended well: the ledger says so, and forgets how."""
        self._rows.commit(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Entries cannot be taken back; whoever runs the batch again finds them in the ledger."""
