"""Copy large orders from one stream to another, each once.

    python examples/large_orders.py

Or paste it into a pyspark shell. It creates its own orders, on the bundled engine or the server of RSTREAM_URL.
"""

import os
import tempfile

from pyspark.sql import SparkSession

import spark_streams

spark = SparkSession.builder.getOrCreate()
url = os.environ.get("RSTREAM_URL", "embedded:")

# Add orders. Any Redis client can do this, too.
new_orders = spark.createDataFrame(
    [("ann", "12.50"), ("bob", "250.00"), ("cid", "99.99"), ("dee", "1200.00")], "customer STRING, amount STRING"
)
new_orders.write.format("rstream").mode("append").option("url", url).option("stream", "example:orders").save()

# One query reads them, as consumer group `large`.
orders = (
    spark.readStream.format("rstream")
    .schema("customer STRING, amount DECIMAL(10,2), _id STRING")
    .option("url", url)
    .option("streams", "example:orders")
    .option("group", "large")
    .option("startingOffsets", "earliest")
    .load()
)

# In a real query the checkpoint is on permanent storage, so that the next run continues.
checkpoint = tempfile.mkdtemp()
spark_streams.run(
    orders.where("amount > 100")
    .withColumnRenamed("_id", "order")
    .writeStream.format("rstream")
    .option("url", url)
    .option("stream", "example:large-orders")
    .option("maxlen", 1_000_000)
    .option("checkpointLocation", checkpoint)
    .queryName("large")
    .trigger(availableNow=True)  # read all entries, then end; without it the query runs until it is stopped
)

# A stream is also a table.
large = spark.read.format("rstream").schema("customer STRING, amount DECIMAL(10,2), _timestamp TIMESTAMP")
large.option("url", url).option("streams", "example:large-orders").load().show(truncate=False)
