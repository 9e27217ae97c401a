"""The batch writer that Spark drives: each task appends its rows, at least once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from spark_streams.errors import SchemaError, UnsupportedError
from spark_streams.options import Options
from spark_streams.sink.fields import check_writable
from spark_streams.sink.write import append
from spark_streams.wire.connection import Connection


@dataclass
class Written(WriterCommitMessage):
    """What a task tells the driver. rows: entries that it appended."""

    rows: int


class BatchWriter(DataSourceArrowWriter):
    """format("rstream") for write, mode append. Raises UnsupportedError for mode overwrite, SchemaError."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise UnsupportedError(
                f"a stream is only appended to: stream {options['stream']!r} is not overwritten; use mode('append'), "
                "or output mode append"
            )
        for field in schema:
            if field.dataType.typeName() == "variant":
                raise SchemaError(f"column {field.name!r} is a VARIANT; write to_json({field.name}) instead")
        check_writable(to_arrow_schema(schema, timezone="UTC"))
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        with Connection(self._options.address) as server:
            return Written(append(server, iterator, self._options))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing is left to do: the entries are in the stream."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Entries cannot be taken back."""
