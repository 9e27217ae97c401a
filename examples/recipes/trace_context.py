"""Continue a trace from entry to entry: W3C's traceparent and tracestate are fields, computed by Spark's expressions.

    python examples/recipes/trace_context.py

The trace ID is unchanged, and each step has its own span ID. Dead letters keep both fields, so a trace continues after
a redrive, too.
"""

import os
import tempfile

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

import spark_streams

_IDS = "(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
# Version 00 exactly; a later version may have more parts.
VALID = f"^(00-{_IDS}|(?!00|ff)[0-9a-f]{{2}}-{_IDS}(-.*)?)$"


def continued(rows: DataFrame, step: str) -> DataFrame:
    """Replace `traceparent` and `tracestate` of entries by those of this step. Rows need `_stream` and `_id`, too.

    The span ID is computed from the entry and the step, so that a batch that is run again has the same rows, as an
    exactly-once sink requires. (If one entry becomes several rows, add their number to it.) An entry without a valid
    traceparent starts a trace, without the tracestate.
    """
    valid = F.coalesce(F.col("traceparent").rlike(VALID), F.lit(False))
    span_id = F.sha2(F.concat_ws("/", F.lit(step), "_stream", "_id"), 256)
    trace = F.when(valid, F.substring("traceparent", 4, 32)).otherwise(F.substring(span_id, 1, 32))
    flags = F.when(valid, F.substring("traceparent", 54, 2)).otherwise("01")
    parent = F.concat_ws("-", F.lit("00"), trace, F.substring(span_id, 33, 16), flags)
    return rows.withColumns({"traceparent": parent, "tracestate": F.when(valid, F.col("tracestate"))})


def traced(spark: SparkSession, url: str) -> DataStreamWriter:
    orders = (
        spark.readStream.format("rstream")
        .schema(
            "customer STRING, amount DECIMAL(10,2), traceparent STRING, tracestate STRING, _stream STRING, _id STRING"
        )
        .options(url=url, streams="example:traced", group="check", startingOffsets="earliest")
        .options(mode="DEADLETTER", deadLetterStream="example:traced:dead")
        .load()
    )
    # Metadata columns must not become fields of the new entry.
    checked = continued(orders, "check").drop("_stream", "_id")
    return checked.writeStream.format("rstream").options(url=url, stream="example:checked").queryName("check")


if __name__ == "__main__":
    spark = SparkSession.builder.getOrCreate()
    url = os.environ.get("RSTREAM_URL", "embedded:")
    caller = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    new = [("ann", "12.50", caller, "shop=1"), ("bob", "a lot", caller, "shop=1"), ("cid", "3.00", None, None)]
    orders = spark.createDataFrame(new, "customer STRING, amount STRING, traceparent STRING, tracestate STRING")
    orders.write.format("rstream").mode("append").options(url=url, stream="example:traced").save()
    # In a real query the checkpoint is on permanent storage.
    checkpoint = tempfile.mkdtemp()
    spark_streams.run(traced(spark, url).option("checkpointLocation", checkpoint).trigger(availableNow=True))
    entries = spark.read.format("rstream").schema("customer STRING, traceparent STRING, tracestate STRING")
    entries.options(url=url, streams="example:checked").load().show(truncate=False)
