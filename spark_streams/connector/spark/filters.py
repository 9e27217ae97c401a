"""Base class of a reader of spark.read, and whether Spark passes a query's filters to it. It does so since 4.1.

An engine that runs the source (running_pyspark.py) asks whether `pushFilters` is still that of its own class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader

from spark_streams.connector.spark.running_pyspark import with_engines_class

if not TYPE_CHECKING:
    DataSourceReader = with_engines_class(DataSourceReader)

HAS_FILTERS = hasattr(DataSourceReader, "pushFilters")

__all__ = ["HAS_FILTERS", "DataSourceReader"]
