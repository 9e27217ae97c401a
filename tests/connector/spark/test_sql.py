"""Streams in SQL: temporary views, catalog tables and their options (docs/guide/reading-tables.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import Row, SparkSession

from tests.connector.spark.streams import PLANS_ONCE
from tools.servers.server import Server

pytestmark = pytest.mark.spark


@pytest.fixture
def options(server: Server) -> str:
    """Of stream `orders`, which has three entries."""
    with server.client() as client:
        for n in range(3):
            client.xadd("orders", {"n": n})
    return f"url '{server.url}', streams 'orders'"


@pytest.fixture
def sql(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[[str], list[Row]]]:
    yield lambda text: spark.sql(text).collect()
    for table in ("t", "made"):
        spark.sql(f"DROP TABLE IF EXISTS {table}")
    for view in ("orders", "large", "streaming"):
        spark.catalog.dropTempView(view)


def numbers(rows: list[Row]) -> list[int]:
    return sorted(row["n"] for row in rows)


def test_a_temporary_view_has_its_options(sql: Callable[[str], list[Row]], options: str) -> None:
    sql(f"CREATE TEMPORARY VIEW orders (n INT) USING rstream OPTIONS ({options})")
    assert numbers(sql("SELECT n FROM orders WHERE n > 0")) == [1, 2]


@pytest.mark.skipif(not PLANS_ONCE, reason="this Spark plans a DataFrame anew for each use")
def test_a_view_is_of_the_moment_of_its_first_use(
    sql: Callable[[str], list[Row]], options: str, server: Server
) -> None:
    view = f"TEMPORARY VIEW orders (n INT) USING rstream OPTIONS ({options})"
    sql(f"CREATE {view}")
    assert numbers(sql("SELECT n FROM orders")) == [0, 1, 2]
    with server.client() as client:
        client.xadd("orders", {"n": 3})
    assert numbers(sql("SELECT n FROM orders")) == [0, 1, 2]
    sql(f"CREATE OR REPLACE {view}")
    assert numbers(sql("SELECT n FROM orders")) == [0, 1, 2, 3]


def test_a_view_without_columns_and_one_that_finds_them(sql: Callable[[str], list[Row]], options: str) -> None:
    sql(f"CREATE TEMPORARY VIEW orders USING rstream OPTIONS ({options})")
    assert [row["fields"]["n"] for row in sql("SELECT fields FROM orders ORDER BY id")] == ["0", "1", "2"]
    sql(f"CREATE TEMPORARY VIEW large USING rstream OPTIONS ({options}, inferSchema true)")
    assert numbers(sql("SELECT n FROM large")) == [0, 1, 2]


def test_insert_into_a_view(sql: Callable[[str], list[Row]], options: str, server: Server) -> None:
    sql(f"CREATE TEMPORARY VIEW orders (n INT) USING rstream OPTIONS ({options})")
    sql(f"CREATE TEMPORARY VIEW large (n INT) USING rstream OPTIONS (url '{server.url}', stream 'large', maxlen 1000)")
    sql("INSERT INTO large SELECT n FROM orders WHERE n > 0")
    with server.client(decode_responses=True) as client:
        assert sorted(fields["n"] for _, fields in client.xrange("large")) == ["1", "2"]


def test_options_of_a_catalog_table_are_accepted_where_it_is_used(
    sql: Callable[[str], list[Row]], options: str, server: Server
) -> None:
    sql(f"CREATE TABLE t (n INT) USING rstream OPTIONS ({options})")
    assert numbers(sql(f"SELECT * FROM t WITH ({options})")) == [0, 1, 2]
    sql(f"INSERT INTO t WITH (url '{server.url}', stream 'orders') VALUES (3)")
    assert numbers(sql(f"SELECT * FROM t WITH ({options})")) == [0, 1, 2, 3]


def test_options_of_a_catalog_table_are_accepted_in_python(
    spark: SparkSession, sql: Callable[[str], list[Row]], options: str, server: Server
) -> None:
    sql("CREATE TABLE t (n INT) USING rstream")
    spark.createDataFrame([(3,)], "n INT").writeTo("t").options(url=server.url, stream="orders").append()
    read = {"url": server.url, "streams": "orders"}
    assert numbers(spark.read.options(**read).table("t").collect()) == [0, 1, 2, 3]
    rows = spark.readStream.options(**read, group="g", startingOffsets="earliest").table("t")
    query = rows.writeStream.format("memory").queryName("told").trigger(availableNow=True).start()
    query.awaitTermination()
    assert numbers(sql("SELECT * FROM told")) == [0, 1, 2, 3]


@pytest.mark.parametrize("text", ["SELECT * FROM t", "INSERT INTO t VALUES (9)", "INSERT OVERWRITE t VALUES (9)"])
def test_a_table_without_options_is_refused(
    sql: Callable[[str], list[Row]], options: str, server: Server, text: str
) -> None:
    """It would be read from, or written to, another server: Spark keeps the table's OPTIONS from us."""
    sql(f"CREATE TABLE t (n INT) USING rstream OPTIONS ({options}, stream 'orders')")
    with pytest.raises(AnalysisException, match=r"\[RSTREAM_INVALID_OPTION\] no option is set: .*TEMPORARY VIEW"):
        sql(text)
    with server.client() as client:
        assert client.xlen("orders") == 3


@pytest.mark.parametrize("rows", ["", " AS SELECT 1 AS n"])
def test_a_table_that_would_lose_its_options_is_not_made(
    spark: SparkSession, sql: Callable[[str], list[Row]], options: str, rows: str
) -> None:
    """Where Spark asks for its columns, or writes its rows, as it is made."""
    with pytest.raises(AnalysisException, match=r"\[RSTREAM_.*: Spark keeps the OPTIONS of a table in its catalog"):
        sql(f"CREATE TABLE made USING rstream OPTIONS ({options}){rows}")
    assert not spark.catalog.tableExists("made")


def test_a_streaming_view(spark: SparkSession, sql: Callable[[str], list[Row]], options: str, server: Server) -> None:
    reader = spark.readStream.format("rstream").schema("n INT").option("startingOffsets", "earliest")
    reader.options(url=server.url, streams="orders", group="g").load().createOrReplaceTempView("streaming")
    found = spark.sql("SELECT sum(n) AS n FROM streaming").writeStream.format("memory").queryName("sums")
    found.outputMode("complete").trigger(availableNow=True).start().awaitTermination()
    assert numbers(sql("SELECT * FROM sums")) == [3]
