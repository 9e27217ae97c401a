"""README.md: entries, a query in Spark of this machine, its rows in a stream."""

from __future__ import annotations

import os
import tempfile

from pyspark.sql import SparkSession

import spark_streams

url = os.environ["RSTREAM_URL"]
spark = SparkSession.builder.master("local[2]").getOrCreate()
spark_streams.register(spark)
spark.sql("SELECT 'ann' AS customer, 7 AS amount").write.format("rstream").mode("append").options(
    url=url, stream="orders"
).save()
source = spark.readStream.format("rstream").schema("customer STRING, amount INT")
orders = source.options(url=url, streams="orders", group="billing", startingOffsets="earliest").load()
writer = orders.writeStream.format("rstream").options(url=url, stream="billed")
with tempfile.TemporaryDirectory() as checkpoint:
    spark_streams.run(writer.option("checkpointLocation", checkpoint).trigger(availableNow=True))
billed = spark.read.format("rstream").schema("customer STRING, amount INT").options(url=url, streams="billed").load()
print("billed:", [tuple(row) for row in billed.collect()])
spark.stop()
