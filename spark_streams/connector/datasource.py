"""format("rstream"): check the options and return readers and writers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from spark_streams.connector.errors import InvalidOptionError, RStreamError, SchemaError, UnsupportedError
from spark_streams.connector.options.access_options import SinkOptions, check_before_use, require_options
from spark_streams.connector.options.option import text_of
from spark_streams.connector.options.source_options import BatchSourceOptions, ReadOptions, SourceOptions
from spark_streams.connector.options.table import BATCH_SOURCE, SOURCE
from spark_streams.connector.spark.installation import check_for_sink
from spark_streams.connector.spark.running_pyspark import is_of_sail, local_schema

if TYPE_CHECKING:
    from spark_streams.connector.sink.writers import BatchWriter, StreamWriter
    from spark_streams.connector.source.rows.columns import Columns

# Columns of rows without a declared schema.
_DEFAULT_SCHEMA = "stream STRING, id STRING, timestamp TIMESTAMP, fields MAP<STRING, STRING>"
_REQUIRED_TO_READ = "set option streams or streamsPattern, and option url for the server"


class RStreamDataSource(DataSource):
    """Redis Streams: `spark.readStream` and `spark.read.format("rstream")`, `df.writeStream`, `df.write`.

    Spark makes each call in another Python process. Modules that only one process needs are imported there, so that not
    all of them load Arrow and redis-py before the first row.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = dict(options)
        check_before_use(self.options)
        self._declared = True

    @classmethod
    def name(cls) -> str:
        return "rstream"

    def schema(self) -> str | StructType:
        """Return the columns for a reader without a schema: the default, or with `inferSchema` those of a sample."""
        if (text_of("inferSchema", self.options, BATCH_SOURCE) or "").lower() == "true":
            if text_of("group", self.options, SOURCE) is not None:
                raise InvalidOptionError(
                    "inferSchema is an option of spark.read: use readStream.schema(…) "
                    "(rstream help options#inferSchema)"
                )
            from spark_streams.connector.source.batch_reader import infer_schema

            return infer_schema(BatchSourceOptions.parse(self.options))
        self._declared = False
        return _DEFAULT_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        from spark_streams.connector.source.batch_reader import BatchReader, PushingBatchReader
        from spark_streams.connector.spark.data_source import HAS_FILTERS

        require_options(self.options, _REQUIRED_TO_READ)
        form = schema if is_of_sail(schema) else None
        if form is not None and text_of("group", self.options, SOURCE) is not None:
            raise UnsupportedError(
                "Sail has no streaming reader of a Python source: for readStream it asks for a table, and option group "
                "belongs to readStream. Read a table with spark.read, without group, or run the query with Apache Spark"
            )
        schema = local_schema(schema)
        options = BatchSourceOptions.parse(self.options)
        columns = self._columns(schema, options)
        if options.push_filters and not HAS_FILTERS:
            raise UnsupportedError(
                "option pushFilters needs Spark 4.1 or newer, which passes filters to Python sources: remove it, and "
                "limit the entries by startingOffsets and endingOffsets, or by startingTimestamp and endingTimestamp"
            )
        pushes = options.push_filters
        reader = PushingBatchReader(options, columns, schema) if pushes else BatchReader(options, columns)
        reader.form = form
        return reader

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from spark_streams.connector.source.stream_reader import RefusedReader, StreamReader
        from spark_streams.connector.spark.data_source import HAS_READ_LIMITS, for_this_spark

        try:
            require_options(self.options, _REQUIRED_TO_READ)
            options = SourceOptions.parse(self.options)
            columns = self._columns(local_schema(schema), options)
            if options.retry_delay and options.mode != "DEADLETTER" and not columns.wants_attempt:
                raise InvalidOptionError(
                    "option retryDelay has nothing to retry: set mode=DEADLETTER. If the query rejects rows itself "
                    "(route_dead_letters), declare _attempt INT and _first_failed TIMESTAMP in the schema "
                    "(rstream help options#retryDelay)"
                )
            if options.target_batch_time is not None and not HAS_READ_LIMITS:
                raise UnsupportedError(
                    "option targetBatchTime needs Spark 4.2 or newer: before, a run with trigger(availableNow=True) is "
                    "one batch, so it has no time of a batch to follow. Remove it, and set maxEntriesPerTrigger"
                )
            live = StreamReader(options, columns, first_at_once=not HAS_READ_LIMITS)
            live.check_commit_calls()
            if options.archive_path is None:
                return for_this_spark(live)
            from spark_streams.connector.source.history_reader import HistoryReader

            return for_this_spark(HistoryReader(live, options, columns))
        except RStreamError as error:
            return for_this_spark(RefusedReader(error))

    def _columns(self, schema: StructType, options: ReadOptions) -> Columns:
        from pyspark.errors import PySparkTypeError

        from spark_streams.connector.source.rows.columns import Columns
        from spark_streams.connector.spark.arrow import arrow_schema

        try:
            arrow = arrow_schema(schema)
        except PySparkTypeError as error:
            raise SchemaError(f"a column of the schema has a type that fields cannot have: {error}") from None
        columns = Columns(
            arrow, self._declared, options.mode, options.column_name_of_corrupt_record, options.null_value
        )
        columns.check_declared()
        return columns

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        options = self._sink()
        from spark_streams.connector.sink.writers import BatchWriter

        return BatchWriter(options, local_schema(schema), overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        options = self._sink()
        from spark_streams.connector.sink.writers import StreamWriter

        return StreamWriter(options, local_schema(schema), overwrite)

    def _sink(self) -> SinkOptions:
        check_for_sink()
        require_options(self.options, "set option stream, or streamColumn if rows name their stream")
        return SinkOptions.parse(self.options)
