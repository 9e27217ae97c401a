"""Base class of a reader of spark.read, and whether Spark passes a query's filters to it. It does so since 4.1.

An engine that runs the source (running_pyspark.py) asks whether `pushFilters` is still that of its own class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_streams.spark.running_pyspark import has_engine, running_module

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader
else:
    from pyspark.sql.datasource import DataSourceReader

    if has_engine():

        class DataSourceReader(running_module("sql.datasource").DataSourceReader, DataSourceReader):
            """The class of the engine and of Spark."""


HAS_FILTERS = hasattr(DataSourceReader, "pushFilters")

__all__ = ["HAS_FILTERS", "DataSourceReader"]
