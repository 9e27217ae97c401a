"""`spark_streams.run(query)`: a query of one's own runs to its end as those of the jobs do (docs/jobs.md)."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator

from pyspark import SparkContext
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_streams.errors import InvalidOptionError, UnsupportedError
from spark_streams.option_values import duration
from spark_streams.running.ending import cut, end_between_batches
from spark_streams.running.quiet import quietened
from spark_streams.running.stopping import Stop
from spark_streams.running.telling import errors_in_one_line, say
from spark_streams.running.to_the_end import to_the_end

ALL = "RSTREAM_TRACEBACK"  # in the environment: as the argument `traceback`

Runnable = StreamingQuery | DataStreamWriter


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
        running = _started(wanted)

        def runs(query: StreamingQuery) -> None:
            nonlocal running
            running = query

        try:
            again = wanted.start if isinstance(wanted, DataStreamWriter) else None
            running, has_ended = to_the_end(running, again, stop, runs)
            if not has_ended:
                say(f"stopping; the batch in flight is finished first ({stop_within} at most; Ctrl-C again: at once)")
                if not end_between_batches(running, patience):
                    say(f"the batch in flight took longer than {stop_within}: it is cut, and run again next time")
                    a_little_longer()
        except KeyboardInterrupt:
            cut(running)
            raise
        return running


@contextlib.contextmanager
def _listening(context: SparkContext) -> Iterator[Stop]:
    """The signals are ours."""
    stop = Stop()
    try:
        stop.listen(context._gateway)
        yield stop
    finally:
        stop.give_back()


def _seconds(stop_within: str) -> float:
    """Raises InvalidOptionError."""
    try:
        return duration(stop_within) / 1000
    except ValueError as error:
        raise InvalidOptionError(f"stop_within={stop_within!r} {error}") from None


def _context() -> SparkContext:
    """Raises UnsupportedError where this process is not the driver, or gets no signals."""
    context = SparkContext._active_spark_context
    if context is None:
        raise UnsupportedError(
            "spark_streams.run needs the driver's own Spark session, made before: over Spark Connect a query goes on "
            "without this program, use query.awaitTermination() there"
        )
    if threading.current_thread() is not threading.main_thread():
        raise UnsupportedError(
            "spark_streams.run works in the main thread only, which alone is told of Ctrl-C: use "
            "query.awaitTermination() in others"
        )
    return context


def _started(query: Runnable) -> StreamingQuery:
    """Raises TypeError."""
    if isinstance(query, DataStreamWriter):
        return query.start()
    if isinstance(query, StreamingQuery):
        return query
    raise TypeError(
        f"spark_streams.run takes df.writeStream…, the query that its start() gives, or a function that gives one of "
        f"them, not a {type(query).__name__}"
    )
