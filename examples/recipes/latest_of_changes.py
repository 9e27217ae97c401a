"""Keep a Delta table equal to a database table whose changes Debezium Server writes to a stream, without a jar.

    python examples/recipes/latest_of_changes.py

Needs `pip install deltalake`. Deletes and truncations are applied; an event that comes twice or late changes nothing. A
large value that is not in the event, because it has not changed, keeps the value of the table.
"""

import json
import os
import tempfile
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Transaction
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

import spark_streams

STREAM = "example:shop.public.customers"
DEAD = f"{STREAM}:dead"
COLUMNS = "id BIGINT, name STRING, credit DECIMAL(10,2)"
OPTIONS = {}  # of spark_streams.debezium: {"timestamps": "us", "decimals": "text"} for events without a schema
TABLE = pa.schema({"id": pa.int64(), "name": pa.string(), "credit": pa.decimal128(10, 2), "_order": pa.string()})
VALUES = ("name", "credit")


def latest(events: str) -> str:
    """Return the SQL expression for the latest of an array of events."""
    later = spark_streams.is_later("other._order", "one._order")
    return f"reduce({events}, get({events}, 0), (one, other) -> CASE WHEN {later} THEN other ELSE one END)"


def latest_of(changes: DataFrame) -> DataFrame:
    """Return the latest event of each key, and the latest truncation. Each value is from the latest event that holds
    it, with the order of that event as `of_<name>`."""
    events = F.sort_array(F.collect_list(F.struct("_order", "_operation", "_unchanged", *VALUES)))
    by_key = (
        changes.where("_operation <> 'message'")
        .withColumn("is_truncate", F.col("_operation") == "truncate")
        .groupBy("id", "is_truncate")
        .agg(events.alias("events"))
    )
    holding = {
        f"at_{name}": f"filter(events, event -> NOT array_contains(event._unchanged, '{name}'))" for name in VALUES
    }
    of_key = by_key.withColumns({name: F.expr(latest(some)) for name, some in {"event": "events", **holding}.items()})
    values = [
        F.col(f"at_{name}.{part}").alias(alias)
        for name in VALUES
        for part, alias in ((name, name), ("_order", f"of_{name}"))
    ]
    is_delete = (F.col("event._operation") == "delete").alias("is_delete")
    return of_key.select("id", "is_truncate", F.col("event._order").alias("_order"), is_delete, *values)


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
        events = latest_of(routed.good).toArrow()
        rows, truncations = events.filter(~pc.field("is_truncate")), events.filter(pc.field("is_truncate"))
        is_later = spark_streams.is_later("s._order", "t._order")
        # The event may lack a large value: s.of_name is then the order of an earlier event that holds it, or null.
        new = {
            name: f"CASE WHEN {spark_streams.is_later(f's.of_{name}', 't._order')} THEN s.{name} ELSE t.{name} END"
            for name in VALUES
        }
        inserted = {name: f"s.{name}" for name in TABLE.names}
        once = CommitProperties(app_transactions=[Transaction(query, number)])
        merger = table.merge(rows, "s.id = t.id", source_alias="s", target_alias="t", commit_properties=once)
        are_gone, is_gone = "false", "false"
        for order in truncations["_order"].to_pylist():
            text = f"'{order.replace(chr(39), chr(39) * 2)}'"
            was_row, is_gone = (spark_streams.is_later(text, f"{side}._order") for side in "ts")
            are_gone = f"{was_row} AND {is_gone}"
            merger = merger.when_not_matched_by_source_delete(was_row)
        (
            merger.when_matched_delete(f"(s.is_delete AND {is_later}) OR ({are_gone})")
            .when_matched_update({"_order": "s._order", **new}, f"{is_later} AND NOT {is_gone}")
            .when_not_matched_insert(inserted, f"NOT s.is_delete AND NOT {is_gone}")
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
    return entries.transform(spark_streams.debezium, COLUMNS, **OPTIONS).writeStream.foreachBatch(merging(url, path))


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
