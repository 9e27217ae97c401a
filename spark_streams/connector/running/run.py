"""`spark_streams.run(query)`: run a user's query to its end as the jobs run theirs (docs/guide/jobs.md)."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeAlias, cast

from pyspark import SparkContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

from spark_streams.base.given_text import IDLE_CHECK, IDLE_CHECK_EACH, PATTERN_INTERVAL, PATTERN_INTERVAL_EACH, duration
from spark_streams.base.numbers import parse_number
from spark_streams.base.untyped import JavaObject, Json
from spark_streams.connector.errors import InvalidOptionError, UnsupportedError
from spark_streams.connector.running.ending import Stop, cut, end_between_batches, wait_for_end
from spark_streams.connector.running.error_output import errors_in_one_line, filtered_spark_log, say
from spark_streams.connector.spark.data_source import HAS_READ_LIMITS
from spark_streams.connector.spark.running_pyspark import is_of_connect
from spark_streams.connector.watch.failure import note_for_dead_letter
from spark_streams.connector.watch.progress import offset_in

# -- trigger(availableNow=True) until all entries are read, on every Spark ---------------------------------------------

# Before 4.2, Spark ends such a query after one batch of a Python source. It does not report that the batch is
# committed, and does not ask for more (docs/internals/facts.md, S37). So the query is started again until a run has no
# batch. That run also acknowledges the last batch.

_MARGIN = 0.5  # seconds: a call of the source that waits, and its trigger
Start = Callable[[], StreamingQuery]


def run_until_drained(
    query: StreamingQuery,
    restart: Start | None,
    stop: Stop,
    on_poll: Callable[[StreamingQuery], None] = lambda query: None,
) -> tuple[StreamingQuery, bool]:
    """Run the query until it has read everything or a stop is requested. Return the last query, and whether it ended.

    restart: starts the query again from the same checkpoint; on_poll: called repeatedly with the running query. Raises
    the error that ended the query (StreamingQueryException).
    """
    while True:
        if not wait_for_end(query, stop, partial(on_poll, query)):
            return query, False
        on_poll(query)
        if not may_have_more(query):
            return query, True
        if restart is None or not _has_checkpoint(query):
            say(
                "this Spark ends trigger(availableNow=True) after one batch, which the next run acknowledges; to "
                "read all entries, pass the writer (df.writeStream…) with a checkpointLocation to spark_streams.run"
            )
            return query, True
        query = restart()


def drain_running(query: StreamingQuery) -> None:
    """Wait until a running query has read every entry that its streams have now.

    Spark's processAllAvailable returns if the source reports no new offset. An idle source asks the server only at
    intervals for entries that do not end its blocking read: released entries, and streams that a pattern finds. So wait
    for the interval, too. After a batch the source asks at once.
    """
    began, batch = time.monotonic(), _batch_of(query)
    query.processAllAvailable()
    streams = _streams_of(query)
    # Spark Connect does not tell the options of a source.
    finds = not hasattr(query, "_jsq") or any("streamspattern" in map(str.lower, one) for one in _options_of(query))
    intervals = [max(PATTERN_INTERVAL, PATTERN_INTERVAL_EACH * streams)] if finds else []
    if _batch_of(query) == batch:
        intervals.append(max(IDLE_CHECK, IDLE_CHECK_EACH * streams))
    if intervals:
        time.sleep(max(0.0, began + max(intervals) + _MARGIN - time.monotonic()))
        query.processAllAvailable()


def _batch_of(query: StreamingQuery) -> object:
    return query.lastProgress["batchId"] if query.lastProgress else None


def _streams_of(query: StreamingQuery) -> int:
    """Return the number of streams that the sources of a query have read."""
    progress: Json = query.lastProgress
    ends = [offset_in(source["endOffset"]) for source in progress["sources"]] if progress else []
    return sum(len(end["streams"]) for end in ends if end is not None)


def _options_of(query: StreamingQuery) -> list[dict[str, str]]:
    """Return the options of each source. They are in the analyzed plan: a query that failed early has no other plan."""
    leaves: JavaObject = query._jsq.streamingQuery().analyzedPlan().collectLeaves()
    relations = [leaves.apply(index) for index in range(leaves.size())]
    sources = [one for one in relations if one.getClass().getSimpleName() == "StreamingRelationV2"]
    return [dict(one.extraOptions().asCaseSensitiveMap()) for one in sources]


def may_have_more(query: StreamingQuery) -> bool:
    """Return whether a query that has ended may have more entries to read.

    This is so if it has run a batch, also an empty one that was run again, on a Spark before 4.2.
    """
    if HAS_READ_LIMITS:
        return False
    trigger = query._jsq.streamingQuery().trigger().toString()
    return bool(
        trigger == "AvailableNowTrigger" and any("addBatch" in progress.durationMs for progress in query.recentProgress)
    )


def _has_checkpoint(query: StreamingQuery) -> bool:
    """Return whether the checkpoint exists. A temporary checkpoint is deleted with the query."""
    context = SparkContext._active_spark_context
    assert context is not None  # the query needs one
    jvm: JavaObject = context._jvm
    folder = jvm.org.apache.hadoop.fs.Path(query._jsq.streamingQuery().resolvedCheckpointRoot())
    return bool(folder.getFileSystem(context._jsc.hadoopConfiguration()).exists(folder))


# -- spark_streams.run -------------------------------------------------------------------------------------------------

ALL = "RSTREAM_TRACEBACK"  # environment variable with the meaning of the argument `traceback`

Runnable: TypeAlias = StreamingQuery | DataStreamWriter  # Spark's own, or those of Spark Connect


def run(query: Runnable | Callable[[], Runnable], stop_within: str, traceback: bool | None) -> StreamingQuery:
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
        except StreamingQueryException as error:
            if not is_of_connect(running):  # Spark Connect does not tell the sources
                # For the dead letter of its entry, as watch does.
                note_for_dead_letter(str(error), _options_of(running))
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


# -- batches of given sizes, for tests: a batch that was killed is repeated --------------------------------------------

# Each batch is a run of its own with this maxEntriesPerTrigger and a trigger that never comes again. A batch is killed
# after its sink has it and before its commit: the query is stopped, and the batch's entry in the checkpoint's commit
# log is deleted. So the next run repeats it, as after a driver that died at this moment.

KILL = "kill"
_NEVER = "36500 days"
_POLL = 0.02  # seconds
Write = Callable[[DataFrame], DataStreamWriter]


def run_batches(reader: DataStreamReader, write: Write, sizes: Sequence[int | str]) -> None:
    """Run the batches. sizes: number of entries of each, or KILL. Raises AssertionError if a batch is of another size,
    ValueError, StreamingQueryException."""
    if not sizes or sizes[0] == KILL or any(size != KILL and (type(size) is not int or size < 1) for size in sizes):
        raise ValueError(f"sizes are numbers of entries from 1, each followed by {KILL!r} or not, and not {sizes!r}")
    size: int | str = 0
    for number, step in enumerate(sizes):
        size = size if step == KILL else step
        query = write(reader.option("maxEntriesPerTrigger", str(size)).load()).trigger(processingTime=_NEVER).start()
        try:
            entries = _entries_of_batch(query)
        finally:
            query.stop()
        if entries != size:
            raise AssertionError(f"batch {number} of {list(sizes)} has {entries:,} entries: the streams have no more")
        if sizes[number + 1 : number + 2] == [KILL]:
            _forget_commit(query)


def _entries_of_batch(query: StreamingQuery) -> int:
    """Wait for the end of the query's trigger, and return how many entries its batch has; 0: there was none. Raises
    StreamingQueryException."""
    while True:
        has_ended = query.status["message"].startswith("Waiting")  # for the next trigger, or for data
        ran = [one for one in query.recentProgress if "addBatch" in one.durationMs]
        if ran:
            return sum(_entries_up_to(source.endOffset) for source in ran[-1].sources)
        if has_ended:
            return 0
        if not query.isActive:
            query.awaitTermination()  # it raises the error that ended the query
            return 0
        time.sleep(_POLL)


def _entries_up_to(offset: str) -> int:
    """Return how many entries the batch has that ends at an offset (connector/source/offset.py)."""
    parsed = offset_in(offset)
    if parsed is None:  # of another kind of source
        return 0
    ranges = [*parsed.get("batch", {}).values(), *(one for part in parsed.get("old", {}).values() for one in part)]
    return sum(parse_number(text.split(" ")[2]) or 0 for text in ranges)


def _forget_commit(query: StreamingQuery) -> None:
    """Delete the newest entry of the checkpoint's commit log."""
    context = SparkContext._active_spark_context
    assert context is not None  # the query had one
    jvm: JavaObject = context._jvm
    folder = jvm.org.apache.hadoop.fs.Path(query._jsq.streamingQuery().resolvedCheckpointRoot(), "commits")
    files = folder.getFileSystem(context._jsc.hadoopConfiguration())
    numbers = (parse_number(one.getPath().getName()) for one in files.listStatus(folder))  # None: a checksum file
    newest = max(number for number in numbers if number is not None)
    files.delete(jvm.org.apache.hadoop.fs.Path(folder, str(newest)), False)
