"""The sink inside Spark, on both servers: every type comes back as it was, and a replayed batch is there once."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest
import redis
from chispa import assert_df_equality
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import spark_streams
from spark_streams.connector.errors import InvalidOptionError
from tests.connector.spark.streams import append, read_stream, run_to_the_end
from tools.servers.server import Server

pytestmark = pytest.mark.spark

# Column: values, the last one null.
VALUES = {
    "text": r"'plain', 'ü – 漢字 🚂', 'a\r\n$3\r\nb', '', '\u0000\t\"', '<value out of range>'",
    "raw": r"X'', X'0D0A2A310D0A', X'00FFFE', X'C3BC', X'2A', X'24'",
    "yes": "true, false, true, false, true, false",
    "tiny": "-128Y, 127Y, 0Y, 1Y, -1Y, 5Y",
    "small": "-32768S, 32767S, 0S, 1S, -1S, 5S",
    "whole": "-2147483648, 2147483647, 0, 1, -1, 5",
    "long": "-9223372036854775808, 9223372036854775807, 0L, 1L, -1L, 5L",
    "single": "float('NaN'), float('Infinity'), float('-Infinity'), float('1.4E-45'), float('3.4028235E38'), "
              "float(0.1)",
    "double": "double('NaN'), double('Infinity'), double('-Infinity'), 4.9E-324D, 1.7976931348623157E308D, 0.1D",
    "money": "0.00BD, -0.01BD, 12345678.90BD, 99999999.99BD, -99999999.99BD, 0.10BD",
    "fine": "cast('99999999999999999999.999999999999999999' AS DECIMAL(38,18)), cast('0.000000000000000001' AS "
            "DECIMAL(38,18)), cast('-0.000000000000000001' AS DECIMAL(38,18)), cast('0' AS DECIMAL(38,18)), "
            "cast('1' AS DECIMAL(38,18)), cast('-1.5' AS DECIMAL(38,18))",
    "day": "DATE'0001-01-01', DATE'9999-12-31', DATE'1970-01-01', DATE'1582-10-15', DATE'2000-02-29', DATE'1969-12-31'",
    "at": "TIMESTAMP'0001-01-01 00:00:00', TIMESTAMP'9999-12-31 23:59:59.999999', "
          "TIMESTAMP'1970-01-01 00:00:00.000001', TIMESTAMP'1969-12-31 23:59:59.999999', "
          "TIMESTAMP'2013-01-31 10:00:00', TIMESTAMP'2024-02-29 12:34:56.789'",
    "local": "TIMESTAMP_NTZ'0001-01-01 00:00:00', TIMESTAMP_NTZ'9999-12-31 23:59:59.999999', "
             "TIMESTAMP_NTZ'1970-01-01 00:00:00.000001', TIMESTAMP_NTZ'1969-12-31 23:59:59.999999', "
             "TIMESTAMP_NTZ'2013-01-31 10:00:00', TIMESTAMP_NTZ'2024-02-29 12:34:56.789'",
    "list": r"array(1, null, -3), array(), array(2147483647), array(0), array(null), array(1)",
    "words": r"array('a', null, ''), array('\"quoted\"', 'back\\slash'), array('\r\n\t\u0001'), array('ü🚂'), array(), "
             r"array('null')",
    "point": "named_struct('x', 0.1D, 'label', 'é', 'at', TIMESTAMP'2013-01-31 10:00:00.000005'), "
             "named_struct('x', 1e300D, 'label', null, 'at', null), named_struct('x', null, 'label', '', 'at', null), "
             "named_struct('x', 1D, 'label', 'a,b', 'at', null), named_struct('x', -0.5D, 'label', '}', 'at', null), "
             "named_struct('x', 2D, 'label', '\"', 'at', null)",
    "prices": "map('a', 1.50BD, 'ü', null), map(), map('k\"', -0.01BD), map('', 0.00BD), map('b', 9.99BD), "
              "map('c', 1.00BD)",
    "deep": "array(named_struct('m', map('k', array(1L, null)), 'b', X'00FF', 'd', DATE'2013-01-31')), array(), "
            "array(null), array(named_struct('m', null, 'b', null, 'd', null)), array(named_struct('m', map(), 'b', "
            "X'', 'd', DATE'1970-01-01')), array(named_struct('m', map('x', array()), 'b', X'2A', 'd', null))",
}  # fmt: skip
LAST = 6  # the row of nulls


@pytest.fixture(scope="module")
def every_type(spark: SparkSession) -> DataFrame:
    """Seven rows; the last one has nothing but its number."""
    columns = [f"element_at(array({values}, null), n + 1) AS {name}" for name, values in VALUES.items()]
    made = spark.range(LAST + 1, numPartitions=1).selectExpr("cast(id AS INT) AS n").selectExpr("n", *columns)
    # What is read may be null anywhere; so must be what it is compared with.
    return made.selectExpr(
        *[f"cast({one.name} AS {one.dataType.simpleString()}) AS {one.name}" for one in made.schema]
    ).cache()


def test_a_frame_of_every_type_equals_itself(spark: SparkSession, server: Server, every_type: DataFrame) -> None:
    append(every_type, server, "types", chunkSize="3")
    schema = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in every_type.schema)
    back = spark.read.format("rstream").schema(schema).options(url=server.url, streams="types").load()
    for frame in (every_type, back):
        assert frame.count() == LAST + 1
    # Beyond what Python's datetime carries safely: compared as text. NaN is NaN here.
    texts = [f"cast({name} AS STRING) AS {name}" for name in ("day", "at", "local")]
    others = [name for name in every_type.columns if name not in ("day", "at", "local")]
    assert_df_equality(
        back.selectExpr(*others, *texts), every_type.selectExpr(*others, *texts),
        ignore_row_order=False, ignore_nullable=True, allow_nan_equality=True,
    )  # fmt: skip


def test_how_values_are_written(server: Server, every_type: DataFrame) -> None:
    """The documented forms, as anybody reads them."""
    append(every_type.where("n = 4").coalesce(1), server, "types")
    with server.client() as client:
        fields = client.xrange("types")[0][1]
    assert fields[b"yes"] == b"true"
    assert fields[b"double"] == b"1.7976931348623157e+308"
    assert fields[b"money"] == b"-99999999.99"
    assert fields[b"fine"] == b"1.000000000000000000"
    assert fields[b"day"] == b"2000-02-29"
    assert fields[b"at"] == b"2013-01-31T10:00:00.000000Z"
    assert fields[b"local"] == b"2013-01-31T10:00:00.000000"
    assert fields[b"raw"] == b"\x2a"
    assert fields[b"point"] == b'{"x":-0.5,"label":"}","at":null}'
    assert fields[b"prices"] == b'{"b":"9.99"}'
    assert fields[b"deep"] == b'[{"m":{},"b":"","d":"1970-01-01"}]'


def _numbers(server: Server, stream: str) -> Counter[int]:
    with server.client() as client:
        return Counter(int(fields[b"n"]) for _, fields in client.xrange(stream))


def test_a_batch_whose_commit_entry_is_missing_is_there_once(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    """As after a kill between sink and commit log; the replay has another number of partitions."""
    with server.client() as client:
        for n in range(500):
            client.xadd("in", {"n": n})

    def run(partitions: int) -> None:
        rows = read_stream(spark, server, "n INT", streams="in", maxEntriesPerTrigger="200").repartition(partitions)
        query = rows.writeStream.format("rstream").options(url=server.url, stream="out", chunkSize="30")
        run_to_the_end(query.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start)

    run(2)
    last = max(int(file.name) for file in (tmp_path / "commits").iterdir() if file.name.isdigit())
    for file in (tmp_path / "commits").glob(f"*{last}*"):
        file.unlink()
    run(3)
    assert _numbers(server, "out") == Counter(range(500))
    shutil.rmtree(tmp_path)


def test_delivery_may_change_between_runs(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    """Exactly once, then at least once for a batch whose commit entry is gone, then exactly once again."""

    def run(first: int, delivery: str) -> None:
        with server.client() as client:
            for n in range(first, first + 100):
                client.xadd("in", {"n": n})
        rows = read_stream(spark, server, "n INT", streams="in", maxEntriesPerTrigger="100")
        query = rows.writeStream.format("rstream").options(url=server.url, stream="out", delivery=delivery)
        run_to_the_end(query.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start)

    run(0, "exactly-once")
    for file in (tmp_path / "commits").glob("*0*"):
        file.unlink()
    run(100, "at-least-once")
    with server.client(decode_responses=True) as client:
        assert client.keys("rstream:sink:{out}*") == []
    run(200, "exactly-once")
    assert _numbers(server, "out") == Counter(range(300)) + Counter(range(100))


@pytest.mark.parametrize("gone", [450, 500])
def test_a_batch_whose_entries_are_trimmed_before_it_is_read_again_is_there_once(
    spark: SparkSession, server: Server, tmp_path: Path, gone: int
) -> None:
    """failOnDataLoss=false: what was written stays, however few of its entries are left; and the query goes on."""
    given = {"streams": "in", "maxEntriesPerTrigger": "200", "failOnDataLoss": "false"}

    def run(first: int) -> None:
        with server.client() as client:
            for n in range(first, first + 500):
                client.xadd("in", {"n": n})
        rows = read_stream(spark, server, "n INT", **given)
        query = rows.writeStream.format("rstream").options(url=server.url, stream="out", chunkSize="30")
        run_to_the_end(query.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start)

    run(0)
    for file in (tmp_path / "commits").glob("*2*"):
        file.unlink()
    with server.client() as client:
        client.xtrim("in", maxlen=500 - gone, approximate=False)
    run(500)
    assert _numbers(server, "out") == Counter(range(1000))


def test_every_write_of_a_foreach_batch_is_written(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    """Two writes of the same rows in one batch are two writes: only Spark's own retries of each are recognised."""
    with server.client() as client:
        for n in range(20):
            client.xadd("in", {"n": n})

    def append_twice(frame: DataFrame, _number: int) -> None:
        append(frame, server, "out")
        append(frame, server, "out")

    query = read_stream(spark, server, "n INT", streams="in").writeStream.foreachBatch(append_twice)
    run_to_the_end(query.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start)
    assert _numbers(server, "out") == Counter(dict.fromkeys(range(20), 2))


def test_rows_name_their_stream(spark: SparkSession, server: Server) -> None:
    rows = (
        spark.range(40)
        .selectExpr("id AS n", "concat('s', id % 4) AS target", "concat(id + 1, '-7') AS key")
        .coalesce(1)
    )
    writer = rows.write.format("rstream").mode("append").options(url=server.url)
    with pytest.raises(PySparkException, match="RSTREAM_INVALID_OPTION.*neither option stream nor streamColumn is set"):
        writer.save()
    writer.options(streamColumn="target", idColumn="key").save()
    assert [sum(_numbers(server, f"s{at}").values()) for at in range(4)] == [10] * 4
    with server.client(decode_responses=True) as client:
        assert client.keys("rstream:*") == []  # nothing is left of a job that has ended
        assert client.xrange("s3", count=1) == [("4-7", {"n": "3"})]


WAY_OUT = r'RSTREAM_SCHEMA.*"_id"\)`\), rename them, or set `.option\("streamColumn", "_stream"\)`.*"idColumn", "_id"'


def _filled(client: redis.Redis) -> str:
    """Two streams of three entries, whose ids do not rise from the one to the other."""
    for stream in ("in", "in2"):
        for n in range(3):
            client.xadd(stream, {"n": n}, id=f"{n + 1}-0")
    return "in,in2"


def _lengths(client: redis.Redis) -> list[int]:
    return [client.xlen(stream) for stream in ("in", "in2", "out")]


def test_a_query_does_not_send_rows_back_to_where_it_read_them(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    """It is refused before it has written; mended as the message says, it goes on from the same checkpoint."""
    client = server.client()
    frame = read_stream(spark, server, "n INT, _stream STRING, _id STRING", streams=_filled(client))

    def run(rows: DataFrame) -> None:
        query = rows.writeStream.format("rstream").options(url=server.url, stream="out")
        run_to_the_end(query.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start)

    with pytest.raises(PySparkException, match=WAY_OUT):
        run(frame)
    assert _lengths(client) == [3, 3, 0]
    run(frame.drop("_stream", "_id"))
    assert _lengths(client) == [3, 3, 6]
    assert _numbers(server, "out") == Counter({0: 2, 1: 2, 2: 2})
    assert client.xpending("in", "g")["pending"] == client.xpending("in2", "g")["pending"] == 0


def test_a_table_goes_where_its_column_says_only_where_an_option_names_that(
    spark: SparkSession, server: Server
) -> None:
    client = server.client()
    table = spark.read.format("rstream").schema("n INT, _stream STRING, _id STRING")
    rows = table.options(url=server.url, streams=_filled(client)).load()
    with pytest.raises(PySparkException, match=WAY_OUT):
        append(rows, server, "out")
    with pytest.raises(
        PySparkException, match="RSTREAM_INVALID_OPTION.*neither option stream nor streamColumn.*or set"
    ):
        rows.write.format("rstream").mode("append").options(url=server.url).save()
    assert _lengths(client) == [3, 3, 0]
    append(rows.drop("_stream", "_id"), server, "out")
    assert _lengths(client) == [3, 3, 6]
    append(rows.drop("_id"), server, "out", streamColumn="_stream")
    assert _lengths(client) == [6, 6, 6]


def test_an_error_names_the_row(spark: SparkSession, server: Server) -> None:
    rows = spark.range(10).selectExpr("CASE WHEN id <> 7 THEN id END AS n").coalesce(1)
    with pytest.raises(Exception, match="RSTREAM_SCHEMA.*row 7 of this task has only nulls"):
        append(rows, server, "out")


def test_named_writes_within_foreach_batch_are_written_once(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    """A batch that Spark replays (its commit-log entry is gone) finds the writes that a name makes a part of it; one
    without a name is a job like any other, and is there again."""
    append(spark.range(30).coalesce(1), server, "in")
    frame = read_stream(spark, server, "id LONG", streams="in", maxEntriesPerTrigger="20")

    def write(rows: DataFrame, _number: int) -> None:
        append(rows.where("id < 25"), server, "low", transaction="low")
        named = spark_streams.transaction("high", rows, _number, "read over Spark Connect alone")
        append(rows.where("id >= 5").repartition(2), server, "high", **named)
        with pytest.raises(PySparkException, match="but Spark runs this write in batch"):
            append(rows, server, "high", **{**named, "transactionBatch": str(_number + 1)})
        with pytest.raises(InvalidOptionError, match="is called in micro-batch"):
            spark_streams.transaction("high", rows, _number + 1, "")
        append(rows, server, "plain")

    def drain() -> None:
        writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "checkpoint"))
        run_to_the_end(writer.trigger(availableNow=True).start)

    drain()
    for name in ("1", ".1.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink()
    drain()
    with server.client() as client:
        read = {
            stream: Counter(int(fields[b"id"]) for _, fields in client.xrange(stream))
            for stream in ("low", "high", "plain")
        }
    assert (read["low"], read["high"]) == (Counter(range(25)), Counter(range(5, 30)))
    assert read["plain"] == Counter(range(30)) + Counter(range(20, 30))


def test_a_transaction_outside_of_foreach_batch_is_refused(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    """It would promise what only a replayed micro-batch needs."""
    with pytest.raises(InvalidOptionError, match="is called in no micro-batch. Call it in the function"):
        spark_streams.transaction("x", spark.range(3), 0, "")
    with pytest.raises(PySparkException, match="option transaction='x' is only for writes within foreachBatch"):
        append(spark.range(3), server, "out", transaction="x")
    writer = read_stream(spark, server, "id LONG", streams="in").writeStream.format("rstream")
    given = {"url": server.url, "stream": "out", "transaction": "x", "checkpointLocation": str(tmp_path)}
    with pytest.raises(PySparkException, match="writeStream writes each micro-batch once without it. Drop"):
        run_to_the_end(writer.options(**given).trigger(availableNow=True).start)


def test_an_aggregation_needs_append_as_spark_gives_python_sinks_no_update_mode(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    totals = read_stream(spark, server, "n INT", streams="in").groupBy("n").count()
    writer = totals.writeStream.format("rstream").options(url=server.url, stream="out").outputMode("update")
    with pytest.raises(PySparkException, match="(?i)update"):
        writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination()
