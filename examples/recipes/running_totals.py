"""A running total for each customer in Spark's state, by transformWithState. Each change is written once.

    python examples/recipes/running_totals.py

Needs Spark 4.1 and `pip install protobuf 'pandas<3'`.
"""

import os
import tempfile
from collections.abc import Iterator
from decimal import Decimal

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.readwriter import DataStreamWriter

import spark_streams

TOTAL = "orders BIGINT, total DECIMAL(18,2)"


class Totals(StatefulProcessor):
    """A row for each customer of a batch.

    The order of a key's rows is arbitrary, and may differ when the batch is run again. The result must not depend on
    it, or the sink would receive other rows.
    """

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._total = handle.getValueState("total", TOTAL)

    def handleInputRows(self, key: tuple, rows: Iterator[Row], timerValues: object) -> Iterator[Row]:
        orders, total = self._total.get() if self._total.exists() else (0, Decimal(0))
        for row in rows:
            orders, total = orders + 1, total + (row.amount or 0)
        self._total.update((orders, total))
        yield Row(customer=key[0], orders=orders, total=total)

    def close(self) -> None:
        pass


def totals(spark: SparkSession, url: str) -> DataStreamWriter:
    # Only RocksDB can hold such state. Set it before the first start, because a checkpoint keeps its state store.
    store = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", store)
    orders = (
        spark.readStream.format("rstream")
        .schema("customer STRING, amount DECIMAL(10,2)")
        .options(url=url, streams="example:purchases", group="totals", startingOffsets="earliest")
        .load()
    )
    changes = orders.groupBy("customer").transformWithState(
        Totals(), outputStructType=f"customer STRING, {TOTAL}", outputMode="Append", timeMode="None"
    )
    return changes.writeStream.format("rstream").options(url=url, stream="example:totals").queryName("totals")


def last_totals(spark: SparkSession, url: str) -> DataFrame:
    """Return the newest entry of each customer, which has the highest number of orders."""
    entries = spark.read.format("rstream").schema(f"customer STRING, {TOTAL}")
    entries = entries.options(url=url, streams="example:totals").load()
    return entries.groupBy("customer").agg(F.max("orders").alias("orders"), F.max_by("total", "orders").alias("total"))


if __name__ == "__main__":
    spark = SparkSession.builder.config("spark.sql.shuffle.partitions", 2).getOrCreate()
    url = os.environ.get("RSTREAM_URL", "embedded:")
    new = [("ann", "12.50"), ("bob", "250.00"), ("ann", "99.99")]
    purchases = spark.createDataFrame(new, "customer STRING, amount STRING")
    purchases.write.format("rstream").mode("append").options(url=url, stream="example:purchases").save()
    # In a real query the checkpoint, which holds the state, is on permanent storage.
    checkpoint = tempfile.mkdtemp()
    spark_streams.run(totals(spark, url).option("checkpointLocation", checkpoint).trigger(availableNow=True))
    last_totals(spark, url).orderBy("customer").show()
