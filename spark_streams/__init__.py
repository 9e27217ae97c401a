"""Redis Streams as a source and a sink of Apache Spark.

`register(spark)` makes `format("rstream")` known where Spark does not find it by itself; `run(query)` runs a query to
its end, `watch(spark, url)` tells how it is doing. Importing this package loads neither pyspark nor pyarrow: the stream
engine starts from it in a tenth of a second, and where there is no Spark all works that needs none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_streams._version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from logging import Logger
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from spark_streams.deadletter.routing import route_dead_letters
    from spark_streams.monitor.watch.listener import Watch

__all__ = ["__version__", "register", "route_dead_letters", "run", "transaction", "watch"]


def __getattr__(name: str) -> object:
    if name == "route_dead_letters":
        _check_for_spark("spark_streams.route_dead_letters")
        from spark_streams.deadletter.routing import route_dead_letters

        return route_dead_letters
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def register(spark: SparkSession) -> None:
    """Make `format("rstream")` known to this session (needed where the wheel is not on Spark's own Python path)."""
    _check_for_spark("spark_streams.register")
    from pyspark.errors import AnalysisException

    from spark_streams.datasource import RStreamDataSource

    try:
        spark.dataSource.register(RStreamDataSource)
    except AnalysisException as error:
        # Spark 4.0 found it by itself, and has nothing put in the place of that (S51).
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def run(
    query: DataStreamWriter | StreamingQuery | Callable[[], DataStreamWriter | StreamingQuery],
    *,
    stop_within: str = "30s",
    traceback: bool | None = None,
) -> StreamingQuery:
    """Run a query to its end, as the jobs run theirs: what is wrong is one line, Ctrl-C and SIGTERM stop it gently.

    query: `df.writeStream…` before its `start()`, which is called here; or a query that is started; or a function that
    gives one of them, so that errors of its own (of `load()`, of names that Spark does not find) are told the same way.
    stop_within: on Ctrl-C or SIGTERM the batch in flight may take so long to finish; then it is cut, and run again next
    time. A second Ctrl-C, a second later or more, ends the program at once.
    traceback: show all that Spark and Python say of an error (default: whether `$RSTREAM_TRACEBACK` is set).

    The query, which has ended, or was stopped. Raises an RStreamError of one line: the one that ended the query,
    QueryError where it is none of ours. A program that does not catch it ends with that line and exit code 1.
    Call it in the main thread, which alone is told of Ctrl-C: raises UnsupportedError elsewhere.
    """
    _check_for_spark("spark_streams.run")
    from spark_streams.running.run import run as run_query

    return run_query(query, stop_within, traceback)


def transaction(name: str, rows: DataFrame, number: int, checkpoint: str) -> dict[str, str]:
    """Options of a write within foreachBatch that is written once also when Spark replays the micro-batch.

    In the function: `rows.write.format("rstream").options(**transaction("good", rows, number, checkpoint), …)`. Over
    Spark Connect there is no other way; elsewhere option `transaction` alone does the same.

    name: of this write, different from the function's other writes; rows, number: what the function is given;
    checkpoint: the query's option `checkpointLocation`, which Spark reads over Spark Connect, once in a run: there
    stands the query's id. Raises InvalidOptionError where it is another query's, or this is no such function.
    """
    _check_for_spark("spark_streams.transaction")
    from spark_streams.sink.named_write import transaction as options_of

    return options_of(name, rows, number, checkpoint)


def watch(
    spark: SparkSession,
    url: str | None = None,
    *,
    log: str | Path | Logger | None = "-",
    metrics_port: int | None = None,
    metrics_host: str = "127.0.0.1",
    metrics_file: str | Path | None = None,
    options: Mapping[str, str] | None = None,
) -> Watch:
    """Watch every query of this session that reads streams: attach it before the queries start.

    url: the server that the queries read from (default: `$RSTREAM_URL`, else `embedded:`); options: what stands beside
    it in those of the queries: `username`, `passwordFile`, `credentialProvider` …
    log: where a JSON line for each micro-batch goes: `-` (standard error), a file that is appended to, a logger (level
    INFO), None for nowhere. metrics_port, metrics_host: serve Prometheus metrics there (0: any port, see the result's
    `metrics_port`); metrics_file: write them to this file at each micro-batch.

    With it, the dead letter of an entry that kills its query (`maxDeliveries`) says the error's class and message.
    The result can be closed; the process' end does that, too. Raises OptionError, UnsupportedError.
    """
    _check_for_spark("spark_streams.watch")
    from spark_streams.monitor.watch.listener import attach

    given = {**(options or {}), **({} if url is None else {"url": url})}
    return attach(spark, given, log, metrics_port, metrics_host, metrics_file)


def _check_for_spark(what: str) -> None:
    from spark_streams.spark.presence import check_for_spark

    check_for_spark(what)
