"""A client of Spark under measurement: `python program.py JARS` runs a request for each line of its input, as JSON, and
prints a line when it has ended. It also runs on the old Spark of spark-redis, so it needs nothing but PySpark.

A request has the function of this module that it names (`do`), with its other values as arguments.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession


def session(jars: str) -> SparkSession:
    """Return a session with local[2], and the settings of tools/bench/spark.py."""
    settings: dict[str, Any] = {
        "spark.driver.memory": "2g", "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "2",
        "spark.python.unix.domain.socket.enabled": "true", "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.redis.port": sys.argv[2],  # spark-redis has no option for it
    }  # fmt: skip
    builder = SparkSession.builder.master("local[2]").config(map=settings)
    spark = (builder.config("spark.jars", jars) if jars else builder).getOrCreate()
    if not jars:  # as the README says
        importlib.import_module("spark_streams").register(spark)
    spark.sparkContext.setLogLevel("OFF")
    return spark


def _selected(frame: DataFrame, given: Mapping[str, Any]) -> DataFrame:
    for expressions in given.get("select", ()):
        frame = frame.selectExpr(*expressions)
    return frame


def rows(count: int, select: Sequence[Sequence[str]], keep: bool) -> int:
    """Make rows in two partitions for `write`. keep: in memory."""
    spark = SparkSession.builder.getOrCreate()
    made = _selected(spark.range(0, count, 1, 2).toDF("id"), {"select": select})
    (made.cache() if keep else made).createOrReplaceTempView("rows")
    return int(spark.table("rows").count()) if keep else 0


def write(sink: Mapping[str, Any]) -> None:
    """Write the rows in one batch."""
    frame = _selected(SparkSession.builder.getOrCreate().table("rows"), sink)
    frame.write.format(sink["format"]).mode("append").options(**sink["options"]).save()


def query(
    sources: Mapping[str, Mapping[str, Any]], sql: str, sink: Mapping[str, Any], checkpoint: str,
    trigger: Mapping[str, Any],
) -> dict[str, float]:  # fmt: skip
    """Start a query over views. With the trigger availableNow, wait for its end; return rows and milliseconds of its
    batches."""
    spark = SparkSession.builder.getOrCreate()
    for name, source in sources.items():
        reader = spark.readStream.format(source["format"]).options(**source["options"])
        frame = _selected((reader.schema(source["schema"]) if "schema" in source else reader).load(), source)
        timed = frame.withWatermark(source["watermark"], "0 seconds") if "watermark" in source else frame
        timed.createOrReplaceTempView(name)
    writer = _selected(spark.sql(sql), sink).writeStream.option("checkpointLocation", checkpoint)
    if sink["format"] == "redis-py":
        writer = writer.foreachBatch(_redis_py(**sink["options"]))
    else:
        writer = writer.format(sink["format"]).options(**sink["options"])
    started = writer.trigger(**trigger).start()
    if "availableNow" not in trigger:
        return {}
    started.awaitTermination()
    batches = [json.loads(one.json) if hasattr(one, "json") else one for one in started.recentProgress]
    return {
        "rows": sum(one["numInputRows"] for one in batches),
        "milliseconds": sum(one["durationMs"]["triggerExecution"] for one in batches if one["numInputRows"]),
    }


def _redis_py(port: int, stream: str) -> Any:
    """What people write for a sink that does not exist: redis-py in foreachBatch."""

    def write(frame: DataFrame, _number: int) -> None:
        import redis

        with redis.Redis(port=port) as client, client.pipeline(transaction=False) as pipeline:
            for row in frame.toLocalIterator():
                pipeline.xadd(stream, row.asDict())
                if len(pipeline) >= 5_000:
                    pipeline.execute()
            pipeline.execute()

    return write


def main() -> None:
    """Answer each line."""
    session(sys.argv[1])
    for line in sys.stdin:
        request = json.loads(line)
        print("answer", json.dumps(globals()[request.pop("do")](**request)), flush=True)


if __name__ == "__main__":
    main()
