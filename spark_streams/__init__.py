"""Redis Streams as a source and a sink of Apache Spark.

`register(spark)` registers `format("rstream")` if Spark does not find it by itself. `run(query)` runs a query to its
end. `watch(spark, url)` logs and measures queries. Importing this package loads neither pyspark nor pyarrow: the stream
engine starts in a tenth of a second, and everything that needs no Spark works without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakSet

from spark_streams.base.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from logging import Logger
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from spark_streams.connector.cdc import debezium, is_later
    from spark_streams.connector.deadletter.routing import route_dead_letters
    from spark_streams.connector.schemas.payload_columns import decode, encode
    from spark_streams.connector.watch.listener import Watch

__all__ = [
    "__version__",
    "debezium",
    "decode",
    "encode",
    "is_later",
    "register",
    "route_dead_letters",
    "run",
    "transaction",
    "watch",
]


def __getattr__(name: str) -> object:
    if name == "debezium":
        _check_for_spark("spark_streams.debezium")
        from spark_streams.connector.cdc import debezium

        return debezium
    if name == "decode":
        _check_for_spark("spark_streams.decode")
        from spark_streams.connector.schemas.payload_columns import decode

        return decode
    if name == "encode":
        _check_for_spark("spark_streams.encode")
        from spark_streams.connector.schemas.payload_columns import encode

        return encode
    if name == "is_later":
        _check_for_spark("spark_streams.is_later")
        from spark_streams.connector.cdc import is_later

        return is_later
    if name == "route_dead_letters":
        _check_for_spark("spark_streams.route_dead_letters")
        from spark_streams.connector.deadletter.routing import route_dead_letters

        return route_dead_letters
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_registered: WeakSet[SparkSession] = WeakSet()  # Spark warns of a second registration


def register(spark: SparkSession | None = None) -> SparkSession:
    """Register `format("rstream")` with a session.

    Spark finds the format by itself if the package is installed for the Python that Spark uses. Then this saves some
    seconds: on this machine its Python processes start sooner. A second call has no effect.

    Args:
        spark: The session. By default the active one, or a new one. The tasks of a new one on this machine run this
            Python, unless `PYSPARK_PYTHON` names another one.

    Returns:
        The session.

    Raises:
        WorkerPythonError: A session on this machine would run its tasks by a Python that lacks this package.
    """
    _check_for_spark("spark_streams.register")
    from pyspark.errors import AnalysisException
    from pyspark.sql import SparkSession

    from spark_streams.connector.datasource import RStreamDataSource
    from spark_streams.connector.errors import WorkerPythonError
    from spark_streams.connector.spark.installation import set_up_workers

    spark = spark or SparkSession.getActiveSession()
    is_ours = spark is None
    if spark is None:
        _check_for_java("spark_streams.register")
        spark = SparkSession.builder.getOrCreate()
    try:
        set_up_workers(spark, is_ours)
    except WorkerPythonError:
        from spark_streams.connector.running.error_output import errors_in_one_line

        with errors_in_one_line(show=False):
            raise
    if spark in _registered:
        return spark
    try:
        spark.dataSource.register(RStreamDataSource)
    except AnalysisException as error:
        # Spark 4.0 found the format by itself, and does not replace it (S51).
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
    _registered.add(spark)
    return spark


def run(
    query: DataStreamWriter | StreamingQuery | Callable[[], DataStreamWriter | StreamingQuery],
    *,
    stop_within: str = "30s",
    traceback: bool | None = None,
) -> StreamingQuery:
    """Run a query until it ends. An error is one line; Ctrl-C and SIGTERM stop the query after the current batch.

    Call it in the main thread, because no other thread receives Ctrl-C. If the program does not catch the error, it
    prints the line and ends with exit code 1.

    Args:
        query: A `df.writeStream…` without `start()`, which `run` then calls; or a started query; or a function that
            returns one of them. Errors in the function (`load()`, names that Spark does not find) are one line, too.
        stop_within: After Ctrl-C or SIGTERM, how long the current batch may take to finish. Then it is cancelled, and
            the next run reads it again. A second Ctrl-C, at least a second later, ends the program at once.
        traceback: `True` keeps the traceback and Spark's error. Default: whether `$RSTREAM_TRACEBACK` is set.

    Returns:
        The query, which has ended.

    Raises:
        RStreamError: The error that ended the query.
        QueryError: The query was ended by an error of Spark or of the program.
        UnsupportedError: It was called outside the main thread.
    """
    _check_for_spark("spark_streams.run")
    from spark_streams.connector.running.run import run as run_query

    return run_query(query, stop_within, traceback)


def transaction(name: str, rows: DataFrame, number: int, checkpoint: str) -> dict[str, str]:
    """Return options that make a write within `foreachBatch` exactly-once.

    In the function: `rows.write.format("rstream").options(**transaction("good", rows, number, checkpoint), …)`. Over
    Spark Connect this is the only way. Elsewhere option `transaction` alone does the same.

    Args:
        name: Name of this write, different from the other writes of the function.
        rows: The first argument of the function.
        number: The second argument of the function.
        checkpoint: The `checkpointLocation` of the query. Over Spark Connect it is read once per run, to find the ID of
            the query.

    Returns:
        The options of the write.

    Raises:
        InvalidOptionError: The checkpoint belongs to another query, or the call is not within `foreachBatch`.
    """
    _check_for_spark("spark_streams.transaction")
    from spark_streams.connector.sink.writers import transaction as options_of

    return options_of(name, rows, number, checkpoint)


def watch(
    spark: SparkSession,
    url: str | None = None,
    *,
    log: str | Path | Logger | None = "-",
    metrics_port: int | None = None,
    metrics_host: str = "127.0.0.1",
    metrics_file: str | Path | None = None,
    lineage: str | None = None,
    unhealthy_after: str = "10m",
    options: Mapping[str, str] | None = None,
) -> Watch:
    """Watch every query of a session that reads streams. Call it before the queries start.

    The dead letter of an entry that kills its query (`maxDeliveries`) then names the class and the message of the
    error.

    Args:
        spark: The session.
        url: The server that the queries read from. Default: `$RSTREAM_URL`, else `embedded:`.
        log: Destination of a JSON line for each micro-batch: `"-"` (standard error), a file, which is appended to, or a
            logger (level INFO). `None`: no lines.
        metrics_port: Serve Prometheus metrics and `/healthz` on this port. `0`: any free port, see `metrics_port` of
            the result.
        metrics_host: Address for `metrics_port`.
        metrics_file: Write the metrics to this file at each micro-batch.
        lineage: Send OpenLineage events to the collector at this URL (`http://host:port`), append them to this file, or
            `"env"`: send them as `openlineage.yml` or the variables `OPENLINEAGE_…` say. The events name what each
            query reads and writes.
        unhealthy_after: `/healthz` answers 503 if no trigger of a query has ended for this long. Choose more than your
            longest batch takes.
        options: Further options of the connection, the same as in the queries: `username`, `passwordFile`,
            `credentialProvider` …

    Returns:
        The listener. `close()` detaches it, as does the end of the process.

    Raises:
        OptionError: An option cannot be used.
        UnsupportedError: This Spark cannot be watched.
    """
    _check_for_spark("spark_streams.watch")
    from spark_streams.connector.watch.listener import attach

    access_options = {**(options or {}), **({} if url is None else {"url": url})}
    return attach(spark, access_options, log, metrics_port, metrics_host, metrics_file, lineage, unhealthy_after)


def _check_for_java(name: str) -> None:
    from spark_streams.connector.spark.installation import check_for_java

    check_for_java(name)


def _check_for_spark(name: str) -> None:
    from spark_streams.connector.spark.installation import check_for_spark

    check_for_spark(name)
