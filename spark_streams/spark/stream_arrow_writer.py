"""Base class of a streaming sink that receives Arrow record batches.

Spark has this class since 4.1. For 4.0, it is a class that is both a stream writer and an Arrow writer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:
    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter
    except ImportError:
        from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter

        class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):
            """The class of Spark 4.1."""


__all__ = ["DataSourceStreamArrowWriter"]
