"""The name of a micro-batch: the same whenever it is run again, and no other batch's, of this query or another."""

from __future__ import annotations

from pyspark.sql import SparkSession


def query_id(spark: SparkSession) -> str:
    """Of the query that runs on this thread: it is its checkpoint's."""
    return spark.sparkContext.getLocalProperty("sql.streaming.queryId") or "query"


def batch_name(spark: SparkSession, number: int) -> str:
    """As the partitions of a table have it."""
    return f"b{query_id(spark)[:8]}-{number}"
