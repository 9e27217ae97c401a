"""Write each micro-batch once to a Delta table, without a jar, by the Python package deltalake and its transactions.

    python examples/recipes/delta_table.py

Needs `pip install deltalake`. The jobs etl and archive do the same with `[table] format = "deltalake"`.
"""

import os
import tempfile
from collections.abc import Callable

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Transaction, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import spark_streams

COLUMNS = pa.schema({"customer": pa.string(), "amount": pa.decimal128(10, 2)})


def appending(path: str) -> Callable[[DataFrame, int], None]:
    """Return a function for foreachBatch. A batch is collected on the driver: limit it by maxEntriesPerTrigger."""

    def append(batch: DataFrame, number: int) -> None:
        # The ID of the checkpoint: a new checkpoint numbers its batches from 0 again.
        query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        table = DeltaTable(path)
        last = table.transaction_version(query)
        if last is not None and last >= number:
            return  # an earlier run wrote it, and was killed before Spark committed the batch
        # In one transaction with the rows. If another run commits this batch first, this one fails.
        once = CommitProperties(app_transactions=[Transaction(query, number)])
        write_deltalake(table, batch.toArrow().cast(COLUMNS), mode="append", commit_properties=once)

    return append


def into_delta(spark: SparkSession, url: str, path: str) -> DataStreamWriter:
    DeltaTable.create(path, COLUMNS, mode="ignore")
    orders = (
        spark.readStream.format("rstream")
        .schema("customer STRING, amount DECIMAL(10,2)")
        .options(url=url, streams="example:sales", group="delta", startingOffsets="earliest")
        .option("maxEntriesPerTrigger", 100_000)
        .load()
    )
    return orders.writeStream.foreachBatch(appending(path)).queryName("delta")


def rows_in(path: str) -> list[dict]:
    # Not to_pyarrow_table: Arrow's threads release its files later. If Python ends meanwhile, the process aborts.
    table = QueryBuilder().register("sales", DeltaTable(path)).execute("SELECT * FROM sales")
    return pa.table(table.read_all()).to_pylist()


if __name__ == "__main__":
    spark = SparkSession.builder.getOrCreate()
    url = os.environ.get("RSTREAM_URL", "embedded:")
    new = spark.createDataFrame([("ann", "12.50"), ("bob", "250.00")], "customer STRING, amount STRING")
    new.write.format("rstream").mode("append").options(url=url, stream="example:sales").save()
    # In a real query the table and the checkpoint are on permanent storage.
    path, checkpoint = tempfile.mkdtemp(), tempfile.mkdtemp()
    spark_streams.run(into_delta(spark, url, path).option("checkpointLocation", checkpoint).trigger(availableNow=True))
    print(rows_in(path))
