"""The streaming writer that Spark drives: a micro-batch is written once, whoever runs it and however often."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from spark_streams.errors import InvalidOptionError, UnsupportedError
from spark_streams.options.sink_options import SinkOptions
from spark_streams.sink.batch_writer import BatchWriter, Written
from spark_streams.spark.stream_arrow_writer import DataSourceStreamArrowWriter
from spark_streams.spark.task_context import micro_batch


class StreamWriter(DataSourceStreamArrowWriter):
    """format("rstream") for writeStream. Output modes append and update: every row is an entry.

    Spark makes one on the driver for each execution of a micro-batch. Query and batch stand in the task's properties
    (FACTS S8), so a replay by another driver finds what this one has written.
    """

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        """Raises InvalidOptionError, and what BatchWriter raises."""
        if options.transaction is not None:
            raise InvalidOptionError(
                "option transaction names a write within foreachBatch, and writeStream writes each micro-batch once by "
                "itself: drop it"
            )
        self._rows = BatchWriter(options, schema, overwrite, of_query=True)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        told = micro_batch()
        if told is None:
            raise UnsupportedError(
                "this Spark does not tell its tasks which micro-batch they are of: write within foreachBatch"
            )
        return self._rows.write_part_of(self._rows.batch_of(told), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """All tasks have ended well: the ledger says so, and forgets how."""
        self._rows.commit(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Entries cannot be taken back; whoever runs the batch again finds them in the ledger."""
