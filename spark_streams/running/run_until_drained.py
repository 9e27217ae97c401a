"""Running a query with trigger(availableNow=True) to the end of what is there, on every Spark.

Before 4.2 Spark ends such a query after one batch of a Python source, and neither says that the batch is committed nor
asks for more (docs/internals/facts.md, S37): so it is started again, until a run has no batch. That one acknowledges
the last batch, too.
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


def to_the_end(
    query: StreamingQuery, again: Start | None, stop: Stop, look: Callable[[StreamingQuery], None] = lambda query: None
) -> tuple[StreamingQuery, bool]:
    """Until the query has read all that it is to read, or is asked to stop. again: starts it once more, from the same
    checkpoint; look: called again and again meanwhile, with the query that runs.

    The query that ran last, and whether it has ended. Raises what ended it (StreamingQueryException).
    """
    while True:
        if not wait_for_end(query, stop, partial(look, query)):
            return query, False
        look(query)
        if not may_have_more(query):
            return query, True
        if again is None or not _has_checkpoint(query):
            say(
                "this Spark ends trigger(availableNow=True) after one batch, which is acknowledged by the next run; to "
                "read on until nothing is left, give spark_streams.run the writer (df.writeStream…) with a "
                "checkpointLocation"
            )
            return query, True
        query = again()


def may_have_more(query: StreamingQuery) -> bool:
    """Whether it has run a batch, and ended because this Spark knows no better. The batch may be an old one, which is
    run again and is empty by now."""
    if HAS_READ_LIMITS:
        return False
    trigger = query._jsq.streamingQuery().trigger().toString()
    return bool(trigger == "AvailableNowTrigger" and any("addBatch" in one.durationMs for one in query.recentProgress))


def _has_checkpoint(query: StreamingQuery) -> bool:
    """Whether what the query knows is still there: a checkpoint that nobody has named goes with the query."""
    context = SparkContext._active_spark_context
    assert context is not None  # or there would be no query
    jvm: JavaObject = context._jvm
    folder = jvm.org.apache.hadoop.fs.Path(query._jsq.streamingQuery().resolvedCheckpointRoot())
    return bool(folder.getFileSystem(context._jsc.hadoopConfiguration()).exists(folder))
