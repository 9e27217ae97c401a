"""spark.read.format("rstream") inside Spark, on both servers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from chispa import assert_df_equality
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_streams.connector.spark.data_source import HAS_FILTERS
from tests.connector.spark.streams import PLANS_ONCE
from tools.servers.server import Server

pytestmark = pytest.mark.spark

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def pushdown(spark: SparkSession) -> Iterator[None]:
    if not HAS_FILTERS:
        pytest.skip("this Spark has no filters for Python sources")
    spark.conf.set(PUSHDOWN, "true")
    yield
    spark.conf.unset(PUSHDOWN)


def add(client: redis.Redis, count: int, stream: str = "s", first: int = 1_700_000_000_000) -> None:
    pipe = client.pipeline(transaction=False)
    for n in range(count):
        pipe.xadd(stream, {"n": n, "half": n / 2}, id=f"{first + n}-0")
    pipe.execute()


def load(spark: SparkSession, server: Server, schema: str | None = None, **options: str) -> DataFrame:
    reader = spark.read.format("rstream")
    reader = reader if schema is None else reader.schema(schema)
    return reader.options(url=server.url, **{"streams": "s", **options}).load()


def test_a_frame_equals_itself_after_a_stream(spark: SparkSession, server: Server) -> None:
    made = spark.range(0, 1000, numPartitions=1).select(
        F.col("id").alias("n"),
        (F.col("id") / 4).alias("quarter"),
        (F.col("id") % 3 == 0).alias("third"),
        F.concat(F.lit("name "), "id").alias("name"),
        F.timestamp_millis(F.col("id") * 1000).alias("at"),
        F.date_from_unix_date(F.col("id").cast("int")).alias("day"),
    )
    made.write.format("rstream").mode("append").options(url=server.url, stream="s").save()
    back = load(spark, server, "n BIGINT, quarter DOUBLE, third BOOLEAN, name STRING, at TIMESTAMP, day DATE")
    assert_df_equality(back, made, ignore_row_order=True, ignore_nullable=True)
    inferred = load(spark, server, inferSchema="true")
    assert_df_equality(inferred, made, ignore_row_order=True, ignore_nullable=True)


def test_rows_without_a_schema(spark: SparkSession, server: Server, client: redis.Redis) -> None:
    client.xadd("s", {"k": "v", "é": "ü"}, id="1500000000000-3")
    expected = spark.range(1).select(
        F.lit("s").alias("stream"),
        F.lit("1500000000000-3").alias("id"),
        F.to_timestamp(F.lit("2017-07-14 02:40:00")).alias("timestamp"),
        F.create_map(F.lit("k"), F.lit("v"), F.lit("é"), F.lit("ü")).alias("fields"),
    )
    found = load(spark, server)
    assert found.columns == expected.columns
    assert found.collect() == expected.collect()


def test_an_inferred_schema_has_the_fields_and_metadata_columns_are_added_as_the_docs_say(
    spark: SparkSession, server: Server, client: redis.Redis
) -> None:
    add(client, 3, "orders")
    client.xadd("orders", {"new": "2026-11-20"})
    found = load(spark, server, streams="orders", inferSchema="true")
    assert found.schema.simpleString() == "struct<n:bigint,half:double,new:date>"
    docs = (Path(__file__).parents[3] / "docs" / "guide" / "reading-tables.md").read_text(encoding="utf-8")
    (example,) = [code for code in re.findall(r"```python\n(.*?)```", docs, re.DOTALL) if "inferSchema" in code]
    names: dict[str, Any] = {"spark": spark, "url": server.url}
    exec(example, names)
    orders = names["orders"].where("half = 1")
    assert orders.columns == ["n", "half", "new", "_id"]
    assert [tuple(row) for row in orders.collect()] == [(2, 1.0, None, "1700000000002-0")]


def test_a_streaming_query_does_not_infer(spark: SparkSession, server: Server, client: redis.Redis) -> None:
    add(client, 3)
    reader = spark.readStream.format("rstream").options(url=server.url, streams="s", group="g", inferSchema="true")
    with pytest.raises(AnalysisException, match="RSTREAM_INVALID_OPTION.*inferSchema is an option of spark.read"):
        reader.load()


def test_nothing_to_read_is_no_rows(spark: SparkSession, server: Server, client: redis.Redis) -> None:
    add(client, 2)
    assert load(spark, server, startingOffsets="1800000000000").count() == 0


@pytest.mark.skipif(not PLANS_ONCE, reason="this Spark plans a DataFrame anew for each use")
def test_a_dataframe_reads_the_same_entries_whenever_it_is_used(
    spark: SparkSession, server: Server, client: redis.Redis
) -> None:
    """The end is pinned when the first query over it is planned; a new load() sees what came since."""
    add(client, 5)
    frame = load(spark, server)
    assert frame.count() == 5
    client.xadd("s", {"n": 5})
    assert frame.count() == 5
    assert load(spark, server).count() == 6


# -- filters -----------------------------------------------------------------------------------------------------------


def sent(client: redis.Redis, command: str) -> int:
    return int(client.info("commandstats").get(f"cmdstat_{command}", {"calls": 0})["calls"])


def test_a_pushed_time_filter_reads_only_its_range(
    spark: SparkSession, server: Server, client: redis.Redis, pushdown: None
) -> None:
    """A thirtieth of the stream costs a fraction of the XRANGEs that the same filter costs when it is not pushed."""
    add(client, 30_000)
    wanted = "_timestamp >= timestamp'2023-11-14 22:13:30' AND _timestamp < timestamp'2023-11-14 22:13:31'"
    cost = {}
    for pushed in ("true", "false"):
        frame = load(spark, server, "n INT, _timestamp TIMESTAMP", entriesPerPartition="1000", pushFilters=pushed)
        client.config_resetstat()
        assert sorted(row.n for row in frame.where(wanted).collect()) == list(range(10_000, 11_000))
        cost[pushed] = sent(client, "xrange")
    assert 5 * cost["true"] < cost["false"], cost


CONDITIONS = (
    "_id = '1700000000100-0'",
    "_id IN ('1700000000100-0', '1700000000007-0', '1-1', 'x')",
    "_id > '1700000000100-0' AND _id <= '1700000000200-0'",
    "_id BETWEEN '1700000000100' AND '1700000000200'",
    "_id > '9-0'",
    "_timestamp = timestamp'2023-11-14 22:13:20.1'",
    "_timestamp > timestamp'2023-11-14 22:13:20.1' AND _timestamp <= timestamp'2023-11-14 22:13:20.2005'",
    "_timestamp IN (timestamp'2023-11-14 22:13:20.1', timestamp'2023-11-14 22:13:20.1001')",
    "_stream = 't'",
    "_stream IN ('s', 'u') AND n > 150",
    "_stream <=> 's' AND NOT (_id = '1700000000100-0') AND _id LIKE '17000000001%'",
    "_id IS NULL",
)


def test_pushed_filters_keep_the_rows_that_spark_keeps(
    spark: SparkSession, server: Server, client: redis.Redis, pushdown: None
) -> None:
    """Held against the same filters over rows that were read without any."""
    add(client, 200)
    add(client, 100, "t", first=5)
    schema = "n INT, _stream STRING, _id STRING, _timestamp TIMESTAMP"
    whole = load(spark, server, schema, streams="s,t").localCheckpoint()
    assert whole.count() == 300
    for condition in CONDITIONS:
        found = load(spark, server, schema, streams="s,t", pushFilters="true").where(condition)
        assert_df_equality(found, whole.where(condition), ignore_row_order=True)


def test_without_push_filters_a_dataframe_can_be_filtered_in_many_ways(
    spark: SparkSession, server: Server, client: redis.Redis, pushdown: None
) -> None:
    """Spark 4.3 would read for every use of a DataFrame what its last pushed filter left."""
    add(client, 200)
    frame = load(spark, server, "n INT, _id STRING")
    first, second = (frame.where(f"_id = '170000000000{n}-0'") for n in (1, 2))
    assert first.count() == 1
    assert frame.count() == 200
    assert sorted(row.n for row in first.union(second).collect()) == [1, 2]


@pytest.mark.skipif(not HAS_FILTERS, reason="this Spark has no filters for Python sources")
def test_push_filters_in_a_session_that_does_not_push_is_an_error_that_names_the_setting(
    spark: SparkSession, server: Server, client: redis.Redis
) -> None:
    add(client, 2)
    with pytest.raises(PySparkException, match=PUSHDOWN):
        load(spark, server, pushFilters="true").count()


@pytest.mark.skipif(HAS_FILTERS, reason="this Spark has filters for Python sources")
def test_push_filters_where_spark_has_none_is_refused(spark: SparkSession, server: Server, client: redis.Redis) -> None:
    add(client, 1)
    with pytest.raises(AnalysisException, match=r"RSTREAM_UNSUPPORTED.*option pushFilters needs Spark 4.1 or newer"):
        load(spark, server, "n INT", pushFilters="true").collect()
