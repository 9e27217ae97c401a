"""Which task of which micro-batch this code runs in, as Spark tells a task (FACTS S8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark import TaskContext

from spark_streams.model.micro_batch import MicroBatchName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUERY, BATCH = "sql.streaming.queryId", "streaming.sql.batchId"  # Spark's names; the driver's local properties, too
RUN = "spark.jobGroup.id"  # Spark puts the jobs of one run of a query into one group, named by the run's id


def micro_batch() -> MicroBatchName | None:
    """The micro-batch that this task belongs to; None where it belongs to none, or this is no task."""
    context = TaskContext.get()
    query, number, run = (None if context is None else context.getLocalProperty(name) for name in (QUERY, BATCH, RUN))
    return None if query is None or number is None else MicroBatchName(query, int(number), run or "")


def micro_batch_of_driver(spark: SparkSession) -> MicroBatchName | None:
    """The micro-batch whose function of foreachBatch runs in this thread of the driver; None where there is none, and
    over Spark Connect, which does not tell."""
    context = getattr(spark, "_sc", None)
    query, number = (None if context is None else context.getLocalProperty(name) for name in (QUERY, BATCH))
    return None if query is None or number is None else MicroBatchName(query, int(number))


def partition() -> int | None:
    """The number of this task's partition; None where this is no task."""
    context = TaskContext.get()
    return None if context is None else context.partitionId()
