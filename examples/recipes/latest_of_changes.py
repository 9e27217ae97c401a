"""Keep a Delta table equal to a database table whose changes Debezium Server writes to a stream, without a jar.

    python examples/recipes/latest_of_changes.py

Needs `pip install deltalake`. Deletes are applied; an event that comes twice or late changes nothing. A large value
that is not in the event, because it has not changed, keeps the value of the table.
"""

import json
import os
import tempfile
from collections.abc import Callable

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Transaction
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

import spark_streams

STREAM = "example:shop.public.customers"
DEAD = f"{STREAM}:dead"
COLUMNS = "id BIGINT, name STRING, credit DECIMAL(10,2)"
TABLE = pa.schema({"id": pa.int64(), "name": pa.string(), "credit": pa.decimal128(10, 2), "_order": pa.string()})
VALUES = ("name", "credit")


def latest_of(changes: DataFrame) -> DataFrame:
    """Return the latest event of each key. Each value is from the latest event that holds it, with the order of that
    event as `of_<name>`."""
    event = F.max_by(F.struct("_order", (F.col("_operation") == "delete").alias("is_delete")), "_order")
    values_by_name = [
        F.max_by(F.struct(name, "_order"), F.when(~F.array_contains("_unchanged", name), F.col("_order"))).alias(name)
        for name in VALUES
    ]
    values = [
        F.col(f"{name}.{part}").alias(alias)
        for name in VALUES
        for part, alias in ((name, name), ("_order", f"of_{name}"))
    ]
    return changes.groupBy("id").agg(event.alias("event"), *values_by_name).select("id", "event.*", *values)


def merging(url: str, path: str) -> Callable[[DataFrame, int], None]:
    """Return a function for foreachBatch. The latest events are collected on the driver: set maxEntriesPerTrigger."""

    def merge(batch: DataFrame, number: int) -> None:
        condition, reason = F.col("_malformed").isNotNull(), F.col("_malformed")
        routed = spark_streams.route_dead_letters(batch, condition, reason, group="changes", at=F.col("_read_at"))
        routed.letters.write.format("rstream").mode("append").options(url=url, stream=DEAD, transaction="dead").save()
        query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        table = DeltaTable(path)
        last = table.transaction_version(query)
        if last is not None and last >= number:
            return  # an earlier run merged it, and was killed before Spark committed the batch
        rows = latest_of(routed.good).toArrow()
        # The event may lack a large value: s.of_name is then the order of an earlier event that holds it, or null.
        new = {name: f"CASE WHEN s.of_{name} > t._order THEN s.{name} ELSE t.{name} END" for name in VALUES}
        inserted = {name: f"s.{name}" for name in TABLE.names}
        once = CommitProperties(app_transactions=[Transaction(query, number)])
        (
            table.merge(rows, "s.id = t.id", source_alias="s", target_alias="t", commit_properties=once)
            .when_matched_delete("s.is_delete AND s._order > t._order")
            .when_matched_update({"_order": "s._order", **new}, "s._order > t._order")
            .when_not_matched_insert(inserted, "NOT s.is_delete")
            .execute()
        )

    return merge


def into_latest(spark: SparkSession, url: str, path: str) -> DataStreamWriter:
    DeltaTable.create(path, TABLE, mode="ignore")
    entries = (
        spark.readStream.format("rstream")
        .schema("_stream STRING, _id STRING, _fields MAP<BINARY, BINARY>")
        .options(url=url, streams=STREAM, group="changes", startingOffsets="earliest", maxEntriesPerTrigger=100_000)
        .load()
        .withColumn("_read_at", F.current_timestamp())
    )
    return entries.transform(spark_streams.debezium, COLUMNS).writeStream.foreachBatch(merging(url, path))


def rows_in(path: str) -> list[dict]:
    # Not to_pyarrow_table: Arrow's threads release its files later. If Python ends meanwhile, the process aborts.
    table = QueryBuilder().register("customers", DeltaTable(path)).execute("SELECT id, name, credit FROM customers")
    return pa.table(table.read_all()).to_pylist()


if __name__ == "__main__":
    spark = SparkSession.builder.getOrCreate()
    url = os.environ.get("RSTREAM_URL", "embedded:")
    changes = [
        ("c", None, {"id": 1, "name": "ann", "credit": "12.50"}),
        ("c", None, {"id": 2, "name": "bob", "credit": "0.00"}),
        ("u", {"id": 1}, {"id": 1, "name": "ann", "credit": "99.00"}),
        ("d", {"id": 2}, None),
    ]
    events = [
        (json.dumps({"id": (after or before)["id"]}), json.dumps({"op": op, "before": before, "after": after}))
        for op, before, after in changes
    ]
    new = spark.createDataFrame(events, "key STRING, value STRING").coalesce(1)
    new.write.format("rstream").mode("append").options(url=url, stream=STREAM).save()
    # In a real query the table and the checkpoint are on permanent storage.
    path, checkpoint = tempfile.mkdtemp(), tempfile.mkdtemp()
    query = into_latest(spark, url, path).option("checkpointLocation", checkpoint).trigger(availableNow=True)
    spark_streams.run(query)
    print(rows_in(path))
