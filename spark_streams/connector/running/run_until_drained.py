"""Run a query with trigger(availableNow=True) until all entries are read, on every Spark.

Before 4.2, Spark ends such a query after one batch of a Python source. It does not report that the batch is committed,
and does not ask for more (docs/internals/facts.md, S37). So the query is started again until a run has no batch. That
run also acknowledges the last batch.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial

from pyspark import SparkContext
from pyspark.sql.streaming.query import StreamingQuery

from spark_streams.base.times import IDLE_CHECK, IDLE_CHECK_EACH, PATTERN_INTERVAL, PATTERN_INTERVAL_EACH
from spark_streams.base.untyped import JavaObject, Json
from spark_streams.connector.running.console import say
from spark_streams.connector.running.ending import wait_for_end
from spark_streams.connector.running.stopping import Stop
from spark_streams.connector.spark.read_limits import HAS_READ_LIMITS

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
    intervals = [max(PATTERN_INTERVAL, PATTERN_INTERVAL_EACH * streams)] if _may_find_streams(query) else []
    if _batch_of(query) == batch:
        intervals.append(max(IDLE_CHECK, IDLE_CHECK_EACH * streams))
    if intervals:
        time.sleep(max(0.0, began + max(intervals) + _MARGIN - time.monotonic()))
        query.processAllAvailable()


def _batch_of(query: StreamingQuery) -> object:
    """Return the number of the last batch that has ended."""
    return query.lastProgress["batchId"] if query.lastProgress else None


def _streams_of(query: StreamingQuery) -> int:
    """Return the number of streams that the sources of a query have read."""
    progress: Json = query.lastProgress
    ends = [source["endOffset"] for source in progress["sources"]] if progress else []
    offsets = [json.loads(end) if isinstance(end, str) else end for end in ends]
    return sum(len(offset.get("streams", ())) for offset in offsets if isinstance(offset, dict))


def _may_find_streams(query: StreamingQuery) -> bool:
    """Return whether a source of a query has option streamsPattern. Spark Connect does not tell: True."""
    if not hasattr(query, "_jsq"):
        return True
    leaves: JavaObject = query._jsq.streamingQuery().logicalPlan().collectLeaves()
    relations = [leaves.apply(index) for index in range(leaves.size())]
    return any(
        relation.relation().options().containsKey("streamsPattern")
        for relation in relations
        if relation.getClass().getSimpleName() == "StreamingDataSourceV2ScanRelation"
    )


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
