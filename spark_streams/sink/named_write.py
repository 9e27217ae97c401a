"""Naming a write within foreachBatch, also where Spark tells its tasks nothing of the micro-batch: over Spark Connect.

What identifies a query there is the id in its checkpoint. A name of the user's own would outlive the checkpoint: a
query that is begun anew, with batch 0, would find that batch written, and its rows would be passed over.
"""

from __future__ import annotations

import json

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from spark_streams.errors import InvalidOptionError
from spark_streams.model.micro_batch import MicroBatchName
from spark_streams.spark.connect import is_of_connect
from spark_streams.spark.task_context import micro_batch_of_driver

# By session and checkpoint: the function of one run of a query has one session, in a process of the server.
_known: dict[tuple[str, str], str] = {}


def transaction(name: str, rows: DataFrame, number: int, checkpoint: str) -> dict[str, str]:
    """See spark_streams.transaction."""
    spark = rows.sparkSession
    query = _in_checkpoint(spark, number, checkpoint) if is_of_connect(spark) else _told(spark, name, number)
    return {"transaction": name, "transactionBatch": str(number), "transactionQuery": query}


def _in_checkpoint(spark: SparkSession, number: int, checkpoint: str) -> str:
    """The query's id. Raises InvalidOptionError where the checkpoint has no such batch."""
    session: str = spark.session_id  # type: ignore[attr-defined]  # Spark Connect's has one
    if (session, checkpoint) not in _known:
        try:
            text = spark.read.text(f"{checkpoint}/metadata").collect()
            spark.read.text(f"{checkpoint}/offsets/{number}").collect()
        except AnalysisException:
            raise InvalidOptionError(
                f"checkpoint {checkpoint!r} is not that of the query which calls this function with batch {number}: "
                f"on Spark's server it has no file metadata, or no offsets/{number}; give what the query has as option "
                "checkpointLocation"
            ) from None
        _known[session, checkpoint] = json.loads(text[0][0])["id"]
    return _known[session, checkpoint]


def _told(spark: SparkSession, name: str, number: int) -> str:
    """The same from Spark. Raises InvalidOptionError where it says that this is another batch, or none."""
    told = micro_batch_of_driver(spark)
    if told is None or told.number != number:
        raise _in_no_such_batch(name, number, told)
    return told.query


def _in_no_such_batch(name: str, number: int, told: MicroBatchName | None) -> InvalidOptionError:
    where = "in no micro-batch" if told is None else f"in micro-batch {told.number} of query {told.query}"
    return InvalidOptionError(
        f"spark_streams.transaction({name!r}, …) was given micro-batch {number}, and is called {where}: call it in the "
        "function of foreachBatch, with the function's own arguments"
    )
