"""Options that name a write within foreachBatch, also over Spark Connect, which does not report the micro-batch.

Over Spark Connect, the ID in the checkpoint identifies the query. A name that the user chooses would outlive the
checkpoint: a new query would find its batch 0 in the ledger and skip the rows.
"""

from __future__ import annotations

import json

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from spark_streams.connector.errors import InvalidOptionError
from spark_streams.connector.micro_batch import MicroBatchName
from spark_streams.connector.spark.running_pyspark import is_of_connect
from spark_streams.connector.spark.worker import micro_batch_of_driver

# By session and checkpoint. In one run of a query, its function has one session, in a process of the server.
_query_ids: dict[tuple[str, str], str] = {}


def transaction(name: str, rows: DataFrame, number: int, checkpoint: str) -> dict[str, str]:
    """See spark_streams.transaction."""
    spark = rows.sparkSession
    query = (
        _query_of_checkpoint(spark, number, checkpoint)
        if is_of_connect(spark)
        else _query_of_driver(spark, name, number)
    )
    return {"transaction": name, "transactionBatch": str(number), "transactionQuery": query}


def _query_of_checkpoint(spark: SparkSession, number: int, checkpoint: str) -> str:
    """Return the query's ID from its checkpoint. Raises InvalidOptionError if the checkpoint has no such batch."""
    session: str = spark.session_id  # type: ignore[attr-defined]  # Spark Connect's has one
    if (session, checkpoint) not in _query_ids:
        try:
            text = spark.read.text(f"{checkpoint}/metadata").collect()
            spark.read.text(f"{checkpoint}/offsets/{number}").collect()
        except AnalysisException:
            raise InvalidOptionError(
                f"checkpoint {checkpoint!r} does not belong to the query that calls this function with batch {number}: "
                f"on Spark's server it has no file metadata, or no file offsets/{number}. Pass the query's option "
                "checkpointLocation"
            ) from None
        _query_ids[session, checkpoint] = json.loads(text[0][0])["id"]
    return _query_ids[session, checkpoint]


def _query_of_driver(spark: SparkSession, name: str, number: int) -> str:
    """Return the query's ID from Spark. Raises InvalidOptionError if Spark runs another batch, or none."""
    spark_batch = micro_batch_of_driver(spark)
    if spark_batch is None or spark_batch.number != number:
        raise _other_batch(name, number, spark_batch)
    return spark_batch.query


def _other_batch(name: str, number: int, spark_batch: MicroBatchName | None) -> InvalidOptionError:
    where = (
        "in no micro-batch"
        if spark_batch is None
        else f"in micro-batch {spark_batch.number} of query {spark_batch.query}"
    )
    return InvalidOptionError(
        f"spark_streams.transaction({name!r}, …) names micro-batch {number}, but is called {where}. Call it in the "
        "function of foreachBatch, with the arguments of that function"
    )
