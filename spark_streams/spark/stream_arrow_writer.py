"""A streaming sink that is handed Arrow record batches: a class of its own since Spark 4.1; 4.0 takes one that is a
stream writer and an Arrow writer at once for the same."""

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
            """As later Sparks have it."""


__all__ = ["DataSourceStreamArrowWriter"]
