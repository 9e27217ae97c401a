"""docs/guide/notebooks.md: a client and a server of Spark Connect, with a function of foreachBatch."""

from __future__ import annotations

import os
import tempfile

from pyspark.sql import SparkSession
from pyspark.sql.connect.dataframe import DataFrame

import spark_streams

url = os.environ["RSTREAM_URL"]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
spark_streams.register(spark)
spark.sql("SELECT 'ann' AS customer, 7 AS amount").write.format("rstream").mode("append").options(
    url=url, stream="orders"
).save()
source = spark.readStream.format("rstream").schema("customer STRING, amount INT")
orders = source.options(url=url, streams="orders", group="billing", startingOffsets="earliest").load()
CHECKPOINT = tempfile.mkdtemp()


def write(rows: DataFrame, number: int) -> None:
    once = spark_streams.transaction("billed", rows, number, CHECKPOINT)
    rows.write.format("rstream").mode("append").options(**once, url=url, stream="billed").save()


writer = orders.writeStream.foreachBatch(write).option("checkpointLocation", CHECKPOINT)
spark_streams.run(writer.trigger(availableNow=True))
billed = spark.read.format("rstream").schema("customer STRING, amount INT").options(url=url, streams="billed").load()
print("billed:", [tuple(row) for row in billed.collect()])
spark.stop()
