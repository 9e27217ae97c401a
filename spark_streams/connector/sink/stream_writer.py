"""Streaming writer that Spark drives: a micro-batch is written once, however often and by whichever driver it runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from spark_streams.connector.errors import InvalidOptionError, UnsupportedError
from spark_streams.connector.options.sink_options import SinkOptions
from spark_streams.connector.sink.batch_writer import BatchWriter, Written
from spark_streams.connector.spark.data_source import DataSourceStreamArrowWriter
from spark_streams.connector.spark.worker import micro_batch


class StreamWriter(DataSourceStreamArrowWriter):
    """format("rstream") for writeStream. Output modes append and complete: every row is an entry.

    Spark creates one on the driver for each execution of a micro-batch. The task's properties name query and batch
    (FACTS S8), so a replay by another driver finds the rows that this one has written.
    """

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        """Raises InvalidOptionError, and the errors of BatchWriter."""
        if options.transaction is not None:
            raise InvalidOptionError(
                "option transaction is only for writes within foreachBatch. writeStream writes each micro-batch once "
                "without it. Drop the option (rstream help options#transaction)"
            )
        self._rows = BatchWriter(options, schema, overwrite, is_micro_batch=True)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        name = micro_batch()
        if name is None:
            raise UnsupportedError(
                "this version of Spark does not report the micro-batch to its tasks, so the sink cannot write it once. "
                "Write within foreachBatch"
            )
        return self._rows.write_part_of(self._rows.batch_of(name), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Close the batch in the ledger when all tasks have succeeded."""
        self._rows.commit(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: entries cannot be removed. The next run of the batch finds them in the ledger."""
