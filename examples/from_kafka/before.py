"""A query with Spark's Kafka connector: large orders go to another topic. `after.py` is the same query over streams.

spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 before.py localhost:9092
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, from_json, struct, to_json

(server,) = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()

orders = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", server)
    .option("subscribe", "orders")
    .option("startingOffsets", "earliest")
    .option("maxOffsetsPerTrigger", 10_000)
    .load()
    .select(from_json(col("value").cast("string"), "customer STRING, amount DECIMAL(10,2)").alias("entry"))
    .select("entry.*")
)

query = (
    orders.where("amount >= 100")
    .select(col("customer").alias("key"), to_json(struct("customer", "amount")).alias("value"))
    .writeStream.format("kafka")
    .option("kafka.bootstrap.servers", server)
    .option("topic", "large")
    .option("checkpointLocation", "checkpoints/before")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
