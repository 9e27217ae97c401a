"""Door: `format("rstream")`."""

from spark_streams.connector.datasource import RStreamDataSource

__all__ = ["RStreamDataSource"]
