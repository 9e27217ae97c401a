"""format("rstream"): checks the options and hands out readers and writers, nothing else."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from spark_streams.errors import UnsupportedError
from spark_streams.options import SINK, SOURCE, parse_options
from spark_streams.sink.batch_writer import BatchWriter
from spark_streams.sink.stream_writer import StreamWriter
from spark_streams.source.columns import DEFAULT_SCHEMA, Columns
from spark_streams.source.stream_reader import StreamReader


class RStreamDataSource(DataSource):
    """Redis Streams: `spark.readStream.format("rstream")`, `df.writeStream`, `df.write`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = dict(options)
        self._declared = True

    @classmethod
    def name(cls) -> str:
        return "rstream"

    def schema(self) -> str:
        """The columns of rows without a declared schema."""
        self._declared = False
        return DEFAULT_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        raise UnsupportedError(
            "spark.read.format('rstream') is not available yet; use readStream with trigger(availableNow=True)"
        )

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = parse_options(self.options, SOURCE, "source")
        columns = Columns(
            to_arrow_schema(schema, timezone="UTC"),
            self._declared,
            options["mode"],
            options["columnNameOfCorruptRecord"],
        )
        columns.check()
        return StreamReader(options, columns)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        return BatchWriter(parse_options(self.options, SINK, "sink"), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        return StreamWriter(parse_options(self.options, SINK, "sink"), schema, overwrite)
