"""Windows over the time of the entries, `_timestamp`: when a window is closed, and which rows are too late for it.

    python examples/recipes/late_rows.py

An entry's ID is its time. Within one stream IDs only grow, so no entry is late. If a query reads several streams, one
may lag behind the others. The watermark sets how long the windows wait for it.
"""

import os
import tempfile

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

import spark_streams

STREAMS = "example:north,example:south"


def counted(readings: DataFrame) -> DataFrame:
    """Aggregate by hour and sensor, of a batch or a stream. Sums of decimals do not depend on the order of rows."""
    hours = readings.groupBy(F.window("_timestamp", "1 hour"), "sensor")
    sums = hours.agg(F.count("*").alias("readings"), F.sum("degrees").alias("degrees"))
    return sums.select(F.col("window.start").alias("hour"), "sensor", "readings", "degrees")


def windows(spark: SparkSession, url: str) -> DataStreamWriter:
    readings = (
        spark.readStream.format("rstream")
        .schema("sensor STRING, degrees DECIMAL(5,1), _timestamp TIMESTAMP")
        .options(url=url, streams=STREAMS, group="windows", startingOffsets="earliest")
        .load()
        .withWatermark("_timestamp", "10 minutes")
    )
    to = {"url": url, "stream": "example:hours"}
    return counted(readings).writeStream.format("rstream").outputMode("append").options(**to).queryName("windows")


def send(spark: SparkSession, url: str, rows: list[tuple[str, str, str, str]]) -> None:
    """Add entries with their own time: stream, time, sensor, degrees. An entry that exists is not added again."""
    readings = spark.createDataFrame(rows, "target STRING, at STRING, sensor STRING, degrees STRING")
    readings = readings.select(
        "target", F.expr("concat(unix_millis(timestamp(at)), '-1')").alias("id"), "sensor", "degrees"
    )
    how = {"streamColumn": "target", "idColumn": "id", "delivery": "at-least-once"}
    readings.coalesce(1).write.format("rstream").mode("append").options(url=url, **how).save()


if __name__ == "__main__":
    spark = SparkSession.builder.config("spark.sql.shuffle.partitions", 2).getOrCreate()
    url = os.environ.get("RSTREAM_URL", "embedded:")
    checkpoint = tempfile.mkdtemp()
    ON_TIME = [
        ("example:south", "2026-01-01 10:05:00Z", "s", "20.5"),
        ("example:north", "2026-01-01 10:00:00Z", "n", "1.0"),
        ("example:north", "2026-01-01 10:40:00Z", "n", "2.0"),
        ("example:north", "2026-01-01 12:30:00Z", "n", "3.0"),  # at 12:20 all windows before 12:00 are closed
    ]
    # 10:50 is in a closed window, and is dropped. 12:10 is later than the watermark, but its window is open.
    LATE = [
        ("example:south", "2026-01-01 10:50:00Z", "s", "99.9"),
        ("example:south", "2026-01-01 12:10:00Z", "s", "21.5"),
        ("example:north", "2026-01-01 14:00:00Z", "n", "4.0"),
    ]
    for rows in (ON_TIME, LATE):
        send(spark, url, rows)
        query = windows(spark, url).option("checkpointLocation", checkpoint).trigger(availableNow=True)
        ran = spark_streams.run(query)
    late = [
        int(state["numRowsDroppedByWatermark"])
        for progress in ran.recentProgress
        for state in progress["stateOperators"]
    ]
    print(f"too late: {sum(late)}")
    hours = spark.read.format("rstream").schema("hour TIMESTAMP, sensor STRING, readings INT, degrees DECIMAL(7,1)")
    hours.options(url=url, streams="example:hours").load().orderBy("hour", "sensor").show()
