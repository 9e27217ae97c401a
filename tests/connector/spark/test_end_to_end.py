"""format("rstream") inside Spark, on both servers: what goes in comes out, typed, once, with nothing pending."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from chispa import assert_df_equality
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_streams import register
from spark_streams.connector.spark.data_source import HAS_READ_LIMITS
from spark_streams.connector.wire.lease import TTL
from tests.connector.spark.streams import append, drain, read_stream, run_to_the_end, start
from tools.servers.server import Server
from tools.waiting import until

pytestmark = pytest.mark.spark

SAMPLE = Path(__file__).resolve().parents[2] / "data" / "flights_sample.csv"
SCHEMA = (
    "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, sched_arr_time INT, "
    "arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, air_time INT, "
    "distance INT, hour INT, minute INT, time_hour TIMESTAMP"
)


@pytest.fixture
def flights(spark: SparkSession) -> DataFrame:
    """842 departures of 2013, some of them cancelled."""
    return spark.read.csv(str(SAMPLE), schema=SCHEMA, header=True, nullValue="NA").coalesce(1).cache()


def test_a_frame_equals_itself_after_a_stream(
    spark: SparkSession, server: Server, flights: DataFrame, tmp_path: Path
) -> None:
    append(flights, server, "flights", chunkSize="100")
    back = drain(read_stream(spark, server, SCHEMA, streams="flights", maxEntriesPerTrigger="300"), tmp_path)
    assert_df_equality(back, flights, ignore_row_order=True, ignore_nullable=True)
    with server.client() as client:
        assert client.xlen("flights") == flights.count() == 842
        assert client.xpending("flights", "g")["pending"] == 0
        # NA is left out: a cancelled flight has no departure time at all.
        fields = [entry for _, entry in client.xrange("flights")]
        assert sum(b"dep_time" not in entry for entry in fields) == flights.where("dep_time IS NULL").count() > 0


@pytest.mark.in_turn(5)
def test_a_query_goes_on_from_its_checkpoint(
    spark: SparkSession, server: Server, flights: DataFrame, tmp_path: Path
) -> None:
    first, second = flights.where("month <= 6"), flights.where("month > 6")
    append(first, server, "flights")
    drain(read_stream(spark, server, SCHEMA, streams="flights"), tmp_path)
    append(second, server, "flights")
    back = drain(read_stream(spark, server, SCHEMA, streams="flights"), tmp_path)
    assert_df_equality(back, flights, ignore_row_order=True, ignore_nullable=True)


def test_a_second_registration_has_no_effect(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark would warn of it."""
    register(spark)
    registered: list[object] = []
    monkeypatch.setattr(type(spark.dataSource), "register", lambda _self, source: registered.append(source))
    assert (register(spark), registered) == (spark, [])


@pytest.mark.in_turn(4)
def test_the_session_shows_that_a_query_runs(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    """Spark may kill the process of a stopped query: then its lease stays, and its session expires (keys.md)."""
    with server.client() as client:
        client.xadd("s", {"k": "v"})
        query = start(read_stream(spark, server, "k STRING", streams="s"), tmp_path, once=False)
        # Spark 4.3 starts no query again that was stopped while it wrote its first offset: a temporary file is left.
        until(lambda: query.lastProgress is not None, "no batch")
        [session] = client.keys("rstream:session:g:*")
        assert session in (client.get("rstream:lease:{s}:g:spark") or b"")
        query.stop()
        before = client.pttl(session)
        until(lambda: 0 < client.pttl(session) < before - 100 or not client.exists(session), "it is renewed")
        assert before <= TTL
        drain(
            read_stream(spark, server, "k STRING", streams="s"), tmp_path
        )  # the lease, if it is there, keeps nobody out


@pytest.mark.in_turn(1)
def test_rows_without_a_schema_and_metadata_columns(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    with server.client() as client:
        client.xadd("a", {"k": "v", "é": "ü"}, id="1500000000000-0")
        client.xadd("b", {"k": "2"}, id="1500000000001-7")
    plain = drain(read_stream(spark, server, None, streams="a,b"), tmp_path / "plain")
    at = F.to_timestamp(F.lit("2017-07-14 02:40:00")).alias("timestamp")
    expected = spark.range(1).select(
        F.lit("a").alias("stream"),
        F.lit("1500000000000-0").alias("id"),
        at,
        F.create_map(F.lit("k"), F.lit("v"), F.lit("é"), F.lit("ü")).alias("fields"),
    )
    assert plain.columns == ["stream", "id", "timestamp", "fields"]
    assert plain.where("stream = 'a'").collect() == expected.collect()
    declared = "k INT, _stream STRING, _id STRING, _timestamp TIMESTAMP, _fields MAP<STRING, STRING>"
    rows = drain(read_stream(spark, server, declared, streams="a,b", group="h"), tmp_path / "declared")
    assert [tuple(row)[:3] for row in rows.orderBy("_id").collect()] == [
        (None, "a", "1500000000000-0"),
        (2, "b", "1500000000001-7"),
    ]


def test_one_stream_into_the_next(spark: SparkSession, server: Server, flights: DataFrame, tmp_path: Path) -> None:
    append(flights, server, "flights")
    source = read_stream(spark, server, SCHEMA, streams="flights", entriesPerPartition="200")
    query = (
        source.where("dep_time IS NOT NULL")
        .writeStream.format("rstream")
        .options(url=server.url, stream="departed", maxlen="100000")
        .option("checkpointLocation", str(tmp_path / "next"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    back = drain(read_stream(spark, server, SCHEMA, streams="departed"), tmp_path)
    assert_df_equality(back, flights.where("dep_time IS NOT NULL"), ignore_row_order=True, ignore_nullable=True)


@pytest.mark.in_turn(6)
def test_the_progress_says_where_the_stream_ends(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    with server.client() as client:
        last = [client.xadd("s", {"n": str(n)}) for n in range(10)][-1].decode()
    frame = read_stream(spark, server, "n INT", streams="s", maxEntriesPerTrigger="4")
    writer = (
        frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
    )
    read = [one for query in run_to_the_end(writer.start) for one in query.recentProgress if one.numInputRows]
    assert [progress.numInputRows for progress in read] == [4, 4, 2]
    if HAS_READ_LIMITS:  # before, Spark asks no source for it
        assert last in read[0].sources[0].latestOffset
    assert last in read[-1].sources[0].endOffset


@pytest.mark.in_turn(2)
def test_columns_that_the_query_does_not_use_may_hold_anything(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    with server.client() as client:
        client.xadd("s", {"n": "1", "x": b"\xff\r\n"})
    rows = drain(read_stream(spark, server, "n INT, x STRING", streams="s").select("n"), tmp_path)
    assert [row.n for row in rows.collect()] == [1]


def test_the_example_of_the_readme_runs(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    readme = (SAMPLE.parents[2] / "README.md").read_text(encoding="utf-8")
    examples = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    example = next(code for code in examples if "large-orders" in code)
    example = example.replace("redis://127.0.0.1:6379/0", server.url).replace("/data/checkpoints", str(tmp_path))
    with server.client() as client:
        client.xadd("orders", {"customer": "a", "amount": "99.00", "at": "2013-01-31T10:00:00Z"})
        client.xadd("orders", {"customer": "b", "amount": "100.50"})
    started = "spark_streams.run(large."
    assert started in example
    example = example.replace(started, f"{started}trigger(availableNow=True).")
    names: dict[str, Any] = {"spark": spark}
    exec(example, names)
    with server.client(decode_responses=True) as client:
        assert [fields for _, fields in client.xrange("large-orders")] == [{"customer": "b", "amount": "100.50"}]
    guide = (SAMPLE.parents[2] / "docs" / "guide" / "reading-tables.md").read_text(encoding="utf-8")
    table = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)[0]
    exec(table.replace("2026-11-20", "2999-01-01").replace("2026-11-19", "2020-01-01"), names)
    assert names["orders"].where("customer = 'a'").count() == 1


@pytest.mark.in_turn(3)
def test_entries_pass_through_byte_for_byte(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    """Declared as `_fields MAP<BINARY, BINARY>`, all fields come and go as they are, those without a column too."""
    entries = [{b"a": b"\xff\xfe", b"more\r\n": b""}, {b"a": b"1", b"b": "ü".encode()}]
    with server.client() as client:
        for fields in entries:
            client.xadd("s", fields)
    source = read_stream(spark, server, "a STRING, _fields MAP<BINARY, BINARY>", streams="s")
    query = (
        source.selectExpr("_fields", "'copied' AS how")
        .coalesce(1)
        .writeStream.format("rstream")
        .options(url=server.url, stream="copy")
        .option("checkpointLocation", str(tmp_path / "c"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    with server.client() as client:
        assert [fields for _, fields in client.xrange("copy")] == [{**fields, b"how": b"copied"} for fields in entries]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gruop": "g"}, "RSTREAM_UNKNOWN_OPTION.*did you mean 'group'"),
        ({"maxEntriesPerTrigger": "0"}, "RSTREAM_INVALID_OPTION.*maxEntriesPerTrigger='0'"),
        ({"url": "redis://127.0.0.1:1"}, "RSTREAM_SERVER_UNREACHABLE.*redis://127.0.0.1:1"),
        ({"url": "127.0.0.1"}, "RSTREAM_INVALID_OPTION.*is not a server address"),
        ({"maxTriggerDelay": "1s"}, "RSTREAM_INVALID_OPTION.*needs option minEntriesPerTrigger"),
    ],
)
def test_options_that_lead_to_no_server_are_named(
    spark: SparkSession, engine_server: Server, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(Exception, match=message) as caught:
        drain(read_stream(spark, engine_server, "n INT", **{"streams": "s", **options}), tmp_path)
    assert "UnboundLocalError" not in str(caught.value), "an error of Spark's own on top of ours"


@pytest.mark.in_turn(0)
def test_a_key_that_is_no_stream_is_named(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    with server.client() as client:
        client.set("text", "no stream")
    with pytest.raises(Exception, match="RSTREAM_WRONG_KEY_TYPE.*key 'text'"):
        drain(read_stream(spark, server, "n INT", streams="text"), tmp_path)


@pytest.mark.in_turn(4)
def test_what_a_stream_cannot_do_is_named(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    frame = spark.range(3)
    with pytest.raises(Exception, match="RSTREAM_UNSUPPORTED.*cannot be overwritten"):
        frame.write.format("rstream").mode("overwrite").options(url=server.url, stream="s").save()
    with pytest.raises(
        Exception, match="RSTREAM_INVALID_OPTION.*'group' belongs to spark.readStream, not to spark.read"
    ):
        spark.read.format("rstream").options(url=server.url, streams="s", group="g").load().collect()
    with pytest.raises(Exception, match="RSTREAM_SCHEMA.*column 'v' is a VARIANT"):
        append(spark.sql("SELECT parse_json('1') AS v"), server, "s")
    with pytest.raises(Exception, match="RSTREAM_SCHEMA.*Cast it to a string"):
        append(spark.sql("SELECT INTERVAL '1-2' YEAR TO MONTH AS v"), server, "s")
    with pytest.raises(Exception, match="RSTREAM_SCHEMA.*a type that fields cannot have"):
        drain(read_stream(spark, server, "v INTERVAL YEAR TO MONTH", streams="s"), tmp_path)
    with pytest.raises(Exception, match="RSTREAM_SCHEMA.*column 'tags' is declared"):
        drain(read_stream(spark, server, "tags VARIANT", streams="s"), tmp_path)
    with server.client() as client:
        assert client.exists("s") == 0
