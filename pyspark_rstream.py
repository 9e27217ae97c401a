"""Spark looks for top-level modules called `pyspark_*` with a `DefaultSource` and registers each one by its name."""

from spark_streams.datasource import RStreamDataSource as DefaultSource

__all__ = ["DefaultSource"]
