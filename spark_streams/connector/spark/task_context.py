"""The task and the micro-batch in which this code runs (docs/internals/facts.md, S8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_streams.base.untyped import JavaObject
from spark_streams.connector.micro_batch import MicroBatchName
from spark_streams.connector.spark.running_pyspark import running_module

if TYPE_CHECKING:
    from pyspark import TaskContext
    from pyspark.sql import SparkSession
else:
    TaskContext = running_module("taskcontext").TaskContext

QUERY, BATCH = "sql.streaming.queryId", "streaming.sql.batchId"  # Spark's names, also of the driver's local properties
RUN = "spark.jobGroup.id"  # the job group of one run of a query, named by the run's ID


def micro_batch() -> MicroBatchName | None:
    """Return the micro-batch of this task, None if there is none or if this is no task."""
    context = TaskContext.get()
    query, number, run = (None if context is None else context.getLocalProperty(name) for name in (QUERY, BATCH, RUN))
    return None if query is None or number is None else MicroBatchName(query, int(number), run or "")


def micro_batch_of_driver(spark: SparkSession) -> MicroBatchName | None:
    """Return the micro-batch whose foreachBatch function runs in this thread of the driver.

    None if there is none, and over Spark Connect, which does not report it.
    """
    context = getattr(spark, "_sc", None)
    query, number = (None if context is None else context.getLocalProperty(name) for name in (QUERY, BATCH))
    return None if query is None or number is None else MicroBatchName(query, int(number))


def time_of_batch(spark: SparkSession) -> int:
    """Return when Spark planned the micro-batch whose foreachBatch function runs in this thread of the driver, in
    milliseconds since the epoch. A batch that is run again has the same time: it is that of `current_timestamp()`.

    As a column of the query, Spark would write the time into the code of its rows, and compile it for each batch.
    """
    jvm: JavaObject = spark._jvm
    session: JavaObject = spark._jsparkSession
    query = jvm.java.util.UUID.fromString(spark.sparkContext.getLocalProperty(QUERY))
    execution = session.sharedState().activeStreamingQueries().get(query)
    return int(execution.lastExecution().offsetSeqMetadata().batchTimestampMs())


def partition() -> int | None:
    """Return the number of this task's partition, None if this is no task."""
    context = TaskContext.get()
    return None if context is None else context.partitionId()
