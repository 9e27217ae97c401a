"""A table of all orders, and the stream of large ones, which two flows write."""

import os

from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
URL = os.environ["RSTREAM_URL"]


def stream_of(name: str, group: str):
    """Read a stream of orders. A full refresh reads it again from its first entry. Bad entries become dead letters."""
    return (
        spark.readStream.format("rstream")
        .schema("customer STRING, amount DECIMAL(10,2)")
        .options(url=URL, streams=name, group=group, startingOffsets="earliest", onNewCheckpoint="restart")
        .options(mode="DEADLETTER", deadLetterStream=f"{name}:dead")
        .load()
    )


@dp.table
def orders():
    return stream_of("orders", "lake")


dp.create_sink("large_orders", "rstream", {"url": URL, "stream": "large-orders"})


@dp.append_flow(target="large_orders")
def large_shop_orders():
    return stream_of("orders", "large").where("amount > 100")


@dp.append_flow(target="large_orders")
def large_phone_orders():
    return stream_of("phone-orders", "large").where("amount > 100")
