"""Redis Streams as a source and a sink of Apache Spark.

`register(spark)` makes `format("rstream")` known where Spark does not find it by itself. Importing this package
loads neither pyspark nor pyarrow: the stream engine starts from it in a tenth of a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_streams.deadletter.routing import route_dead_letters

__version__ = "0.1.0"

__all__ = ["__version__", "register", "route_dead_letters"]


def __getattr__(name: str) -> object:
    if name == "route_dead_letters":
        from spark_streams.deadletter.routing import route_dead_letters

        return route_dead_letters
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def register(spark: SparkSession) -> None:
    """Make `format("rstream")` known to this session (needed where the wheel is not on Spark's own Python path)."""
    from spark_streams.datasource import RStreamDataSource

    spark.dataSource.register(RStreamDataSource)
