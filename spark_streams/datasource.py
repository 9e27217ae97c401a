"""format("rstream"): checks the options and hands out readers and writers, nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from spark_streams.errors import InvalidOptionError, RStreamError, SchemaError, UnsupportedError
from spark_streams.options.sink_options import SinkOptions
from spark_streams.options.source_options import BatchSourceOptions, ReadOptions, SourceOptions
from spark_streams.options.uses import check_any_given, check_for_any_use

if TYPE_CHECKING:
    from spark_streams.sink.batch_writer import BatchWriter
    from spark_streams.sink.stream_writer import StreamWriter
    from spark_streams.source.rows.columns import Columns

# Of rows without a declared schema.
_DEFAULT_SCHEMA = "stream STRING, id STRING, timestamp TIMESTAMP, fields MAP<STRING, STRING>"
_LEAST_TO_READ = "say which streams to read (option streams, or streamsPattern), and at which server (option url)"


class RStreamDataSource(DataSource):
    """Redis Streams: `spark.readStream` and `spark.read.format("rstream")`, `df.writeStream`, `df.write`.

    Spark asks each question in a Python process of its own: what only one of them needs is imported there, so that the
    first row does not wait for Arrow and redis-py in all.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = dict(options)
        check_for_any_use(self.options)
        self._declared = True

    @classmethod
    def name(cls) -> str:
        return "rstream"

    def schema(self) -> str | StructType:
        """The columns of rows without a declared schema: the default ones, or with `inferSchema` those of a sample."""
        if self._wants_inference():
            if any(name.lower() == "group" for name in self.options):
                raise InvalidOptionError("inferSchema is an option of spark.read: give readStream a schema")
            from spark_streams.source.batch_reader import infer_schema

            return infer_schema(BatchSourceOptions.parse(self.options))
        self._declared = False
        return _DEFAULT_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        from spark_streams.source.batch_reader import BatchReader, PushingBatchReader
        from spark_streams.spark.filters import HAS_FILTERS

        check_any_given(self.options, _LEAST_TO_READ)
        options = BatchSourceOptions.parse(self.options)
        columns = self._columns(schema, options)
        if not options.push_filters:
            return BatchReader(options, columns)
        if not HAS_FILTERS:
            raise UnsupportedError(
                "option pushFilters needs a Spark that hands its filters to Python sources, 4.1 or newer: drop it, and "
                "bound what is read by startingOffsets, endingOffsets and their like"
            )
        return PushingBatchReader(options, columns, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from spark_streams.source.refused_reader import RefusedReader
        from spark_streams.source.stream_reader import StreamReader
        from spark_streams.spark.batch_starts import for_this_spark
        from spark_streams.spark.read_limits import HAS_READ_LIMITS

        try:
            check_any_given(self.options, _LEAST_TO_READ)
            options = SourceOptions.parse(self.options)
            columns = self._columns(schema, options)
            if options.retry_delay and options.mode != "DEADLETTER" and not columns.wants_tries:
                raise InvalidOptionError(
                    "option retryDelay has nothing to try again: set mode=DEADLETTER, or, for rules of your own "
                    "(route_dead_letters), declare _attempt INT and _first_failed TIMESTAMP in the schema"
                )
            return for_this_spark(StreamReader(options, columns, first_at_once=not HAS_READ_LIMITS))
        except RStreamError as error:
            return for_this_spark(RefusedReader(error))

    def _columns(self, schema: StructType, options: ReadOptions) -> Columns:
        from pyspark.errors import PySparkTypeError

        from spark_streams.source.rows.columns import Columns
        from spark_streams.spark.arrow_schema import arrow_schema

        try:
            arrow = arrow_schema(schema)
        except PySparkTypeError as error:
            raise SchemaError(f"the schema has a column that fields cannot be read as: {error}") from None
        columns = Columns(arrow, self._declared, options.mode, options.column_name_of_corrupt_record)
        columns.check()
        return columns

    def _wants_inference(self) -> bool:
        return any(name.lower() == "inferschema" and text.lower() == "true" for name, text in self.options.items())

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        from spark_streams.sink.batch_writer import BatchWriter

        return BatchWriter(self._sink(), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        from spark_streams.sink.stream_writer import StreamWriter

        return StreamWriter(self._sink(), schema, overwrite)

    def _sink(self) -> SinkOptions:
        check_any_given(self.options, "name the stream (option stream), or the server (option url) if rows name theirs")
        return SinkOptions.parse(self.options)
