"""Run a query with trigger(availableNow=True) until all entries are read, on every Spark.

Before 4.2, Spark ends such a query after one batch of a Python source. It does not report that the batch is committed,
and does not ask for more (docs/internals/facts.md, S37). So the query is started again until a run has no batch. That
run also acknowledges the last batch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pyspark import SparkContext
from pyspark.sql.streaming.query import StreamingQuery

from spark_streams.model.untyped import JavaObject
from spark_streams.running.console import say
from spark_streams.running.ending import wait_for_end
from spark_streams.running.stopping import Stop
from spark_streams.spark.read_limits import HAS_READ_LIMITS

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
