"""`spark_streams.run(query)`: run a user's query to its end as the jobs run theirs (docs/guide/jobs.md)."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import TypeAlias, cast

from pyspark import SparkContext
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_streams.base.times import duration
from spark_streams.connector.errors import InvalidOptionError, UnsupportedError
from spark_streams.connector.running.console import errors_in_one_line, say
from spark_streams.connector.running.ending import cut, end_between_batches
from spark_streams.connector.running.run_until_drained import run_until_drained
from spark_streams.connector.running.spark_log_filter import filtered_spark_log
from spark_streams.connector.running.stopping import Stop
from spark_streams.connector.spark.data_source import HAS_READ_LIMITS
from spark_streams.connector.spark.running_pyspark import is_of_connect

ALL = "RSTREAM_TRACEBACK"  # environment variable with the meaning of the argument `traceback`

Runnable: TypeAlias = StreamingQuery | DataStreamWriter  # Spark's own, or those of Spark Connect


def run(query: Runnable | Callable[[], Runnable], stop_within: str, traceback: bool | None) -> StreamingQuery:
    """Run a query, see spark_streams.run."""
    show = bool(os.environ.get(ALL)) if traceback is None else traceback
    with contextlib.ExitStack() as closing:
        closing.enter_context(errors_in_one_line(show))
        patience = _seconds(stop_within)
        context = _context()
        keep_filter_longer = closing.enter_context(filtered_spark_log(context, not show))
        stop = closing.enter_context(_listening(context))
        runnable = query() if callable(query) else query
        running = _started(runnable, context)

        def set_running(query: StreamingQuery) -> None:
            nonlocal running
            running = query

        try:
            restart = runnable.start if isinstance(runnable, DataStreamWriter) else None
            running, has_ended = run_until_drained(running, restart, stop, set_running)
            if not has_ended:
                say(f"stopping after the batch in flight (at most {stop_within}); press Ctrl-C again to stop at once")
                keep_filter_longer()
                if not end_between_batches(running, patience, stop):
                    say(f"the batch in flight took longer than {stop_within}: it is cut, and the next run repeats it")
        except KeyboardInterrupt:
            cut(running)
            raise
        return running


@contextlib.contextmanager
def _listening(context: SparkContext | None) -> Iterator[Stop]:
    """Handle SIGTERM and SIGINT within the block."""
    stop = Stop()
    try:
        stop.listen(None if context is None else context._gateway)
        yield stop
    finally:
        stop.restore()


def _seconds(stop_within: str) -> float:
    """Return the duration in seconds. Raises InvalidOptionError."""
    try:
        return duration(stop_within) / 1000
    except ValueError as error:
        raise InvalidOptionError(f"stop_within={stop_within!r} {error}") from None


def _context() -> SparkContext | None:
    """Return the SparkContext, None over Spark Connect. Raises UnsupportedError outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        raise UnsupportedError(
            "spark_streams.run works only in the main thread, because no other thread receives Ctrl-C: use "
            "query.awaitTermination() in other threads"
        )
    return SparkContext._active_spark_context


def _started(query: Runnable, context: SparkContext | None) -> StreamingQuery:
    """Return the query, and start it if it is a writer. Raises TypeError, UnsupportedError."""
    writers, queries = _classes_of(query)
    if not isinstance(query, (*writers, *queries)):
        raise TypeError(
            f"spark_streams.run takes df.writeStream…, the query that its start() returns, or a function that returns "
            f"one of them, not a {type(query).__name__}"
        )
    if context is None and not is_of_connect(query):
        raise UnsupportedError("spark_streams.run was called without a Spark session: create the session before")
    if is_of_connect(query) and not HAS_READ_LIMITS:
        raise UnsupportedError(
            "spark_streams.run over Spark Connect needs Spark 4.2 or newer, which reads trigger(availableNow=True) to "
            "its end: use query.awaitTermination()"
        )
    return cast(DataStreamWriter, query).start() if isinstance(query, writers) else cast(StreamingQuery, query)


def _classes_of(query: object) -> tuple[tuple[type, ...], tuple[type, ...]]:
    """Return the classes of writers and of queries."""
    if not is_of_connect(query):
        return (DataStreamWriter,), (StreamingQuery,)
    from pyspark.sql.connect.streaming.query import StreamingQuery as QueryOfConnect
    from pyspark.sql.connect.streaming.readwriter import DataStreamWriter as WriterOfConnect

    return (WriterOfConnect,), (QueryOfConnect,)
