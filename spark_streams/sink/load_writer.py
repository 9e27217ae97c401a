"""format("rstream-load"): the writer behind jobs/load.py, for rows whose order is always the same.

Option `load` is JSON of sink.counts.Load; the others are the sink's. One partition: a stream has one order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from spark_streams.errors import InvalidOptionError
from spark_streams.option_tables import SINK
from spark_streams.options import Options, parse_options
from spark_streams.sink.counts import Load
from spark_streams.sink.fields import WAYS_TO_USE, check_writable
from spark_streams.sink.loading import append_in_order
from spark_streams.spark.arrow_schema import arrow_schema


class LoadDataSource(DataSource):
    """Checks the options and makes the writer."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = dict(options)

    @classmethod
    def name(cls) -> str:
        return "rstream-load"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        check_loadable(schema)
        given = dict(self.options)
        load = Load(**json.loads(given.pop("load")))
        return LoadWriter(parse_options(given, SINK, "sink"), load)


def check_loadable(schema: StructType) -> None:
    """Raises InvalidOptionError for columns that a load does not have, SchemaError for types that cannot be written."""
    for name in WAYS_TO_USE:
        if name in schema.fieldNames():
            raise InvalidOptionError(
                f"column {name!r}: a load fills one stream, whose server gives the ids; leave it out"
            )
    check_writable(arrow_schema(schema))


class LoadWriter(DataSourceArrowWriter):
    """Appends what is not in the stream yet."""

    def __init__(self, options: Options, load: Load) -> None:
        self._options = options
        self._load = load

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        append_in_order(iterator, self._options, self._load)
        return WriterCommitMessage()
