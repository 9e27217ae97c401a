"""Base class of a streaming sink that receives Arrow record batches.

Spark has this class since 4.1. For 4.0, it is a class that is both a stream writer and an Arrow writer. An engine that
runs the sink has one of its own, and asks for that (running_pyspark.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_streams.connector.spark.running_pyspark import with_engines_class

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:
    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter
    except ImportError:
        from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter

        class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):
            """The class of Spark 4.1."""

    DataSourceStreamArrowWriter = with_engines_class(DataSourceStreamArrowWriter)

__all__ = ["DataSourceStreamArrowWriter"]
