"""The query of `before.py` over streams of Redis.

spark-submit after.py redis://localhost:6379/0
"""

import sys

from pyspark.sql import SparkSession

import spark_streams

(server,) = sys.argv[1:]
spark = spark_streams.register(SparkSession.builder.getOrCreate())

orders = (
    spark.readStream.format("rstream")
    .option("url", server)
    .option("streams", "orders")
    .option("group", "large")
    .option("startingOffsets", "earliest")
    .option("maxEntriesPerTrigger", 10_000)
    .schema("customer STRING, amount DECIMAL(10,2)")
    .load()
)

query = (
    orders.where("amount >= 100")
    .writeStream.format("rstream")
    .option("url", server)
    .option("stream", "large")
    .option("checkpointLocation", "checkpoints/after")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
