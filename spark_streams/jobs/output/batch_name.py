"""Name of a micro-batch: unique among all batches of all queries, and the same when the batch is run again."""

from __future__ import annotations

from pyspark.sql import SparkSession

from spark_streams.connector.micro_batch import partition_name


def query_id(spark: SparkSession) -> str:
    """Return the ID, from its checkpoint, of the query that runs on this thread."""
    return spark.sparkContext.getLocalProperty("sql.streaming.queryId") or "query"


def batch_name(spark: SparkSession, number: int) -> str:
    """Return the name that partitions of a table use."""
    return partition_name(query_id(spark), number)
