"""What spark.read and df.write do on Sail, and what is refused there."""

from __future__ import annotations

import datetime
from collections import Counter
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
import redis

from tools.servers.server import Server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BEGAN = 1_700_000_000_000  # time of the first entry


def put(client: redis.Redis, count: int) -> None:
    pipeline = client.pipeline(transaction=False)
    for n in range(count):
        pipeline.xadd("orders", {"customer": f"c{n % 10}", "amount": n}, id=f"{BEGAN + n}-0")
    pipeline.execute()


def table(spark: SparkSession, server: Server, schema: str | None, **options: str) -> DataFrame:
    reader = spark.read.format("rstream").options(**{"url": server.url, "streams": "orders", **options})
    return (reader if schema is None else reader.schema(schema)).load()


def test_all_entries_are_read_once(spark: SparkSession, server: Server, client: redis.Redis) -> None:
    """In several tasks."""
    put(client, 200_000)
    frame = table(spark, server, "customer STRING, amount BIGINT", entriesPerPartition="30000")
    [row] = frame.selectExpr("count(*) AS rows", "sum(amount) AS total").collect()
    assert (row.rows, row.total) == (200_000, sum(range(200_000)))


def test_ranges_filters_and_views(spark: SparkSession, server: Server, client: redis.Redis) -> None:
    put(client, 1000)
    first, last = f"{BEGAN + 100}-0", f"{BEGAN + 109}-0"
    part = table(spark, server, "amount INT", startingOffsets=first, endingOffsets=last)
    assert sorted(row.amount for row in part.collect()) == list(range(101, 110))
    pushed = table(spark, server, "_id STRING, amount INT", pushFilters="true").where(f"_id >= '{BEGAN + 998}-0'")
    assert sorted(row.amount for row in pushed.collect()) == [998, 999]
    table(spark, server, "customer STRING, amount INT").createOrReplaceTempView("orders")
    rows = spark.sql("SELECT customer, sum(amount) AS total FROM orders GROUP BY 1 ORDER BY 1 LIMIT 2").collect()
    assert [(row.customer, row.total) for row in rows] == [("c0", 49_500), ("c1", 49_600)]


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_values_keep_their_types(spark: SparkSession, server: Server, client: redis.Redis, zone: str) -> None:
    """Sail names the session's time zone in the type of a time, and an array's field is called item."""
    at = "2026-11-28T10:00:00Z"
    fields = {"d": "1.50", "b": "x", "at": at, "day": "2026-11-28", "a": '["x","y"]', "s": '{"n":1}', "flag": "true"}
    client.xadd("orders", {**fields, "local": at[:-1]}, id=f"{BEGAN}-7")
    schema = (
        "_id STRING, _timestamp TIMESTAMP, _stream STRING, _fields MAP<STRING, STRING>, d DECIMAL(10,2), b BINARY, "
        "at TIMESTAMP, local TIMESTAMP_NTZ, day DATE, a ARRAY<STRING>, s STRUCT<n: INT>, flag BOOLEAN, none DOUBLE"
    )
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        frame = table(spark, server, schema)
        [row] = frame.selectExpr("*", "unix_millis(_timestamp) AS ms", "unix_seconds(at) AS s_at").collect()
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
    assert (row._id, row.ms, row._stream, row._fields["day"]) == (f"{BEGAN}-7", BEGAN, "orders", "2026-11-28")
    assert (row.d, bytes(row.b), row.s_at) == (Decimal("1.50"), b"x", 1_795_860_000)
    assert row.local == datetime.datetime(2026, 11, 28, 10)
    assert (row.day, list(row.a), row.s.n, row.flag, row.none) == (
        *(datetime.date(2026, 11, 28), ["x", "y"], 1, True, None),
    )


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_rows_are_written_once_and_to_shards(
    spark: SparkSession, server: Server, client: redis.Redis, delivery: str
) -> None:
    put(client, 5000)
    frame = table(spark, server, "customer STRING, amount INT", entriesPerPartition="1000")
    into = {"url": server.url, "stream": "out", "shards": "3", "shardBy": "customer", "delivery": delivery}
    frame.write.format("rstream").mode("append").options(**into).save()
    shards = list(client.keys("out:*"))
    assert len(shards) == 3
    found = {shard: [fields for _, fields in client.xrange(shard)] for shard in shards}
    assert Counter(int(one["amount"]) for rows in found.values() for one in rows) == Counter(range(5000))
    of_customer = Counter(customer for rows in found.values() for customer in {one["customer"] for one in rows})
    assert set(of_customer.values()) == {1}, "the rows of a customer are in one shard"


def refusal(ask: Any) -> str:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as caught:
        ask()
    return str(caught.value)


def test_a_query_is_refused_by_name(spark: SparkSession, server: Server, client: redis.Redis, tmp_path: Any) -> None:
    put(client, 1)
    rows = spark.readStream.format("rstream").schema("amount INT")
    frame = rows.options(url=server.url, streams="orders", group="g", startingOffsets="earliest").load()
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    reason = refusal(lambda: query.trigger(availableNow=True).start().awaitTermination(60))
    assert "[RSTREAM_UNSUPPORTED] Sail has no streaming reader of a Python source" in reason
    assert client.xinfo_groups("orders") == []


def test_what_sail_or_the_format_refuses_there(spark: SparkSession, server: Server, client: redis.Redis) -> None:
    """If one of these passes, docs/internals/facts.md (S105) can lose it."""
    put(client, 1)
    assert "Unsupported type in DDL schema: Map" in refusal(table(spark, server, None).collect)
    inferred = table(spark, server, None, inferSchema="true")
    assert [(row.customer, row.amount) for row in inferred.collect()] == [("c0", 0)]
    client.xadd("orders", {"at": "2026-11-28T10:00:00Z"})
    assert "[rstream::schema] AssertionError" in refusal(table(spark, server, None, inferSchema="true").collect)
    spark.sql("DROP TABLE IF EXISTS t")
    spark.sql(f"CREATE TABLE t (amount INT) USING rstream OPTIONS (url '{server.url}', streams 'orders')")
    assert "[RSTREAM_UNKNOWN_OPTION]" in refusal(lambda: spark.sql("SELECT * FROM t").collect())
    overwriting = table(spark, server, "amount INT").write.format("rstream").mode("overwrite")
    assert "cannot be overwritten" in refusal(overwriting.options(url=server.url, stream="out").save)
