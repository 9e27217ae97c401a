"""`spark_streams.run(query)`: a query of one's own runs to its end as those of the jobs do (docs/guide/jobs.md)."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import cast

from pyspark import SparkContext
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_streams.errors import InvalidOptionError, UnsupportedError
from spark_streams.options.values import duration
from spark_streams.running.console import errors_in_one_line, say
from spark_streams.running.ending import cut, end_between_batches
from spark_streams.running.run_until_drained import to_the_end
from spark_streams.running.spark_log_filter import quietened
from spark_streams.running.stopping import Stop
from spark_streams.spark.connect import is_of_connect
from spark_streams.spark.read_limits import HAS_READ_LIMITS

ALL = "RSTREAM_TRACEBACK"  # in the environment: as the argument `traceback`

Runnable = StreamingQuery | DataStreamWriter  # Spark's own, or those of Spark Connect


def run(query: Runnable | Callable[[], Runnable], stop_within: str, traceback: bool | None) -> StreamingQuery:
    """See spark_streams.run."""
    show = bool(os.environ.get(ALL)) if traceback is None else traceback
    with contextlib.ExitStack() as closing:
        closing.enter_context(errors_in_one_line(show))
        patience = _seconds(stop_within)
        context = _context()
        a_little_longer = closing.enter_context(quietened(context, not show))
        stop = closing.enter_context(_listening(context))
        wanted = query() if callable(query) else query
        running = _started(wanted, context)

        def runs(query: StreamingQuery) -> None:
            nonlocal running
            running = query

        try:
            again = wanted.start if isinstance(wanted, DataStreamWriter) else None
            running, has_ended = to_the_end(running, again, stop, runs)
            if not has_ended:
                say(f"stopping; the batch in flight is finished first ({stop_within} at most; Ctrl-C again: at once)")
                a_little_longer()
                if not end_between_batches(running, patience, stop):
                    say(f"the batch in flight took longer than {stop_within}: it is cut, and run again next time")
        except KeyboardInterrupt:
            cut(running)
            raise
        return running


@contextlib.contextmanager
def _listening(context: SparkContext | None) -> Iterator[Stop]:
    """The signals are ours."""
    stop = Stop()
    try:
        stop.listen(None if context is None else context._gateway)
        yield stop
    finally:
        stop.give_back()


def _seconds(stop_within: str) -> float:
    """Raises InvalidOptionError."""
    try:
        return duration(stop_within) / 1000
    except ValueError as error:
        raise InvalidOptionError(f"stop_within={stop_within!r} {error}") from None


def _context() -> SparkContext | None:
    """None where this process is not the driver: over Spark Connect. Raises UnsupportedError without signals."""
    if threading.current_thread() is not threading.main_thread():
        raise UnsupportedError(
            "spark_streams.run works in the main thread only, which alone is told of Ctrl-C: use "
            "query.awaitTermination() in others"
        )
    return SparkContext._active_spark_context


def _started(query: Runnable, context: SparkContext | None) -> StreamingQuery:
    """Raises TypeError, UnsupportedError."""
    writers, queries = _classes_of(query)
    if not isinstance(query, (*writers, *queries)):
        raise TypeError(
            f"spark_streams.run takes df.writeStream…, the query that its start() gives, or a function that gives one "
            f"of them, not a {type(query).__name__}"
        )
    if context is None and not is_of_connect(query):
        raise UnsupportedError("spark_streams.run was called before there was a Spark session: make it before")
    if is_of_connect(query) and not HAS_READ_LIMITS:
        raise UnsupportedError(
            "spark_streams.run over Spark Connect needs Spark 4.2 or newer, which reads trigger(availableNow=True) to "
            "its end: use query.awaitTermination()"
        )
    return cast(DataStreamWriter, query).start() if isinstance(query, writers) else cast(StreamingQuery, query)


def _classes_of(query: object) -> tuple[tuple[type, ...], tuple[type, ...]]:
    """What is a writer, and what a query."""
    if not is_of_connect(query):
        return (DataStreamWriter,), (StreamingQuery,)
    from pyspark.sql.connect.streaming.query import StreamingQuery as QueryOfConnect
    from pyspark.sql.connect.streaming.readwriter import DataStreamWriter as WriterOfConnect

    return (WriterOfConnect,), (QueryOfConnect,)
