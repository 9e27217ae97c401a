"""Redis Streams as a source and a sink of Apache Spark.

`register(spark)` makes `format("rstream")` known where Spark does not find it by itself; `watch(spark, url)` tells how
its queries are doing. Importing this package loads neither pyspark nor pyarrow: the stream engine starts from it in a
tenth of a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_streams._version import __version__

if TYPE_CHECKING:
    from logging import Logger
    from pathlib import Path

    from pyspark.sql import SparkSession

    from spark_streams.deadletter.routing import route_dead_letters
    from spark_streams.monitor.watch.listener import Watch

__all__ = ["__version__", "register", "route_dead_letters", "watch"]


def __getattr__(name: str) -> object:
    if name == "route_dead_letters":
        from spark_streams.deadletter.routing import route_dead_letters

        return route_dead_letters
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def register(spark: SparkSession) -> None:
    """Make `format("rstream")` known to this session (needed where the wheel is not on Spark's own Python path)."""
    from spark_streams.datasource import RStreamDataSource

    spark.dataSource.register(RStreamDataSource)


def watch(
    spark: SparkSession,
    url: str | None = None,
    *,
    log: str | Path | Logger | None = "-",
    metrics_port: int | None = None,
    metrics_host: str = "127.0.0.1",
    metrics_file: str | Path | None = None,
) -> Watch:
    """Watch every query of this session that reads streams: attach it before the queries start.

    url: the server that the queries read from (default: `$RSTREAM_URL`, else `embedded:`).
    log: where a JSON line for each micro-batch goes: `-` (standard error), a file that is appended to, a logger (level
    INFO), None for nowhere. metrics_port, metrics_host: serve Prometheus metrics there (0: any port, see the result's
    `metrics_port`); metrics_file: write them to this file at each micro-batch.

    With it, the dead letter of an entry that kills its query (`maxDeliveries`) says the error's class and message.
    The result can be closed; the process' end does that, too. Raises OptionError, UnsupportedError.
    """
    from spark_streams.monitor.watch.listener import attach

    return attach(spark, url, log, metrics_port, metrics_host, metrics_file)
