"""Hourly means of readings, by their event time, into a stream.

    python examples/hourly.py

Or paste it into a pyspark shell. It creates its own readings, on the bundled engine or the server of RSTREAM_URL.
"""

import os
import tempfile

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import spark_streams

spark = SparkSession.builder.config("spark.sql.shuffle.partitions", 2).getOrCreate()
url = os.environ.get("RSTREAM_URL", "embedded:")

minutes = spark.range(240).selectExpr("TIMESTAMP '2026-01-01 00:00:00' + make_interval(0, 0, 0, 0, 0, id) AS at", "id")
readings = minutes.selectExpr("at", "concat('room-', id % 2) AS sensor", "20 + id % 7 AS degrees")
readings.write.format("rstream").mode("append").option("url", url).option("stream", "example:readings").save()

# Readings may be ten minutes late. When the watermark passes the end of an hour, the hour is final and written once.
hours = (
    spark.readStream.format("rstream")
    .schema("sensor STRING, at TIMESTAMP, degrees INT")
    .option("url", url)
    .option("streams", "example:readings")
    .option("group", "hourly")
    .option("startingOffsets", "earliest")
    .load()
    .withWatermark("at", "10 minutes")
    .groupBy(F.window("at", "1 hour"), "sensor")
    .agg(F.avg("degrees").cast("DECIMAL(5,2)").alias("mean"), F.count("*").alias("readings"))
    .select(F.col("window.start").alias("hour"), "sensor", "mean", "readings")
)

# In a real query the checkpoint is on permanent storage, so that the next run continues.
spark_streams.run(
    hours.writeStream.format("rstream")
    .outputMode("append")
    .option("url", url)
    .option("stream", "example:hourly")
    .option("checkpointLocation", tempfile.mkdtemp())
    .queryName("hourly")
    .trigger(availableNow=True)
)

means = spark.read.format("rstream").schema("hour TIMESTAMP, sensor STRING, mean DECIMAL(5,2), readings INT")
means.option("url", url).option("streams", "example:hourly").load().orderBy("hour", "sensor").show()
