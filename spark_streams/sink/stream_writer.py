"""The streaming writer that Spark drives: each task appends its rows, at least once."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from spark_streams.options import Options
from spark_streams.sink.batch_writer import BatchWriter, Written


class StreamWriter(DataSourceStreamArrowWriter):
    """format("rstream") for writeStream. Output modes append and update: every row is an entry."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        self._rows = BatchWriter(options, schema, overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self._rows.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing is left to do: the entries are in the stream."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Entries cannot be taken back; the batch is run again and appends them again (at-least-once)."""
