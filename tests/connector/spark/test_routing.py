"""route_dead_letters: a query's own rules split its rows, as a streaming query and within foreachBatch."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_streams import route_dead_letters
from spark_streams.connector.deadletter.envelope import MARK, NAMES, RedriveMark, dead_letter_fields, open_envelope
from spark_streams.connector.errors import SchemaError
from spark_streams.connector.spark.worker import time_of_batch
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Connection
from tests.connector.spark.streams import read_stream, run_to_the_end
from tools.servers.server import Server

pytestmark = pytest.mark.spark

SCHEMA = "n INT, _stream STRING, _id STRING, _deliveries INT, _fields MAP<BINARY, BINARY>"


def fill(server: Server) -> list[bytes]:
    """Ten entries: the odd ones are bad, 3 was sent back before, 5 has bytes that are no text, 9 has no number."""
    raw = server.client()
    entries: list[dict[bytes, bytes]] = [{b"n": b"%d" % n, b"other": b"x\r\ny"} for n in range(9)]
    entries[3][MARK] = bytes(RedriveMark(2, "2026-01-01T00:00:00.000000Z", "dead/7-0"))
    entries[5][b"\xff"] = b"\x00\xfe"
    entries.append({b"other": b"no number"})
    return [raw.xadd("s", entry) for entry in entries]  # type: ignore[arg-type]


def dead_letters_in(server: Server, stream: str = "dead") -> list[tuple[dict[bytes, bytes], dict[str, str]]]:
    found = []
    with Connection(Address.parse(server.url)) as connection:  # redis-py's replies have no name twice
        replies = connection.execute("XRANGE", stream, "-", "+")
    for _, words in replies:
        fields, envelope = open_envelope(words)
        found.append((dict(zip(fields[0::2], fields[1::2], strict=True)), envelope))
    return sorted(found, key=lambda one: one[1]["id"])


def check(server: Server, ids: list[bytes], query: str) -> None:
    letters = dead_letters_in(server)
    assert [envelope["id"].encode() for _, envelope in letters] == [ids[n] for n in (1, 3, 5, 7)]
    assert [fields.get(b"n") for fields, _ in letters] == [b"1", b"3", b"5", b"7"]
    assert letters[2][0] == {b"n": b"5", b"other": b"x\r\ny", b"\xff": b"\x00\xfe"}
    assert MARK not in letters[1][0]
    first, again = letters[0][1], letters[1][1]
    assert tuple(first) == NAMES
    assert (first["stream"], first["group"], first["stage"], first["reason"]) == ("s", "g", "mine", "odd 1")
    assert (first["query"], first["batch"], first["deliveries"]) == (query, "0", "1")
    assert (first["redrives"], first["previous"]) == ("0", "")
    assert first["first-failed"] == first["last-failed"]
    assert first["last-failed"].endswith("Z")
    assert (again["redrives"], again["previous"]) == ("2", "dead/7-0")
    assert again["first-failed"] == "2026-01-01T00:00:00.000000Z" < again["last-failed"]


def route(df: DataFrame) -> tuple[DataFrame, DataFrame]:
    reason = F.concat(F.lit("odd "), F.col("n"))
    return route_dead_letters(df, "n % 2 = 1", reason, stage="mine", group="g", consumer="spark")


def test_dead_letters_of_a_streaming_query_go_through_the_sink(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    """All original fields byte for byte, the envelope complete, the past of an entry that was sent back kept."""
    ids = fill(server)
    good, letters = route(read_stream(spark, server, SCHEMA, streams="s"))
    assert good.columns == ["n", "_stream", "_id", "_deliveries", "_fields"]
    query = (
        letters.writeStream.format("rstream").options(url=server.url, stream="dead")
        .option("checkpointLocation", str(tmp_path / "letters")).trigger(availableNow=True)
    )  # fmt: skip
    first = run_to_the_end(query.start)[0]
    check(server, ids, str(first.id))


def test_a_dead_letter_that_becomes_a_dead_letter_keeps_its_past(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    """A query over a dead-letter stream."""
    told = {"stream": "s", "id": "5-0", "first-failed": "t1", "last-failed": "t1"}
    sent_back = dead_letter_fields(
        [b"n", b"3", MARK, bytes(RedriveMark(2, "2026-01-01T00:00:00.000000Z", "old/7-0"))], told
    )
    server.client().execute_command("XADD", "letters", "*", *sent_back)
    server.client().execute_command("XADD", "letters", "*", *dead_letter_fields([b"n", b"5"], told))
    server.client().execute_command("XADD", "letters", "*", "n", "7", "dl.redrives", "9", "dl.previous", "mine")
    query = (
        route(read_stream(spark, server, SCHEMA, streams="letters"))[1]
        .writeStream.format("rstream").options(url=server.url, stream="dead")
        .option("checkpointLocation", str(tmp_path / "letters")).trigger(availableNow=True)
    )  # fmt: skip
    run_to_the_end(query.start)
    again, first, own = dead_letters_in(server)
    assert (again[0][b"dl.id"], again[0][b"dl.stream"], again[1]["stream"]) == (b"5-0", b"s", "letters")
    assert (again[1]["redrives"], again[1]["previous"]) == ("2", "old/7-0")
    assert again[1]["first-failed"] == "2026-01-01T00:00:00.000000Z" < again[1]["last-failed"]
    assert (first[1]["redrives"], first[1]["previous"], first[1]["first-failed"]) == ("0", "", "t1")
    assert (own[1]["redrives"], own[1]["previous"]) == ("0", "")


def test_within_foreach_batch_rows_are_either_good_or_dead_letters(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    ids = fill(server)
    kept: list[int | None] = []

    def batch(rows: DataFrame, number: int) -> None:
        good, letters = route(rows)
        kept.extend(row["n"] for row in good.select("n").collect())
        letters.write.format("rstream").mode("append").options(url=server.url, stream="dead").save()

    query = (
        read_stream(spark, server, SCHEMA, streams="s").writeStream.foreachBatch(batch)
        .option("checkpointLocation", str(tmp_path / "both")).trigger(availableNow=True)
    )  # fmt: skip
    first = run_to_the_end(query.start)[0]
    check(server, ids, str(first.id))
    assert kept == [0, 2, 4, 6, 8, None]  # where the condition is null the row is good


def test_without_the_metadata_columns_it_says_what_to_declare(spark: SparkSession) -> None:
    with pytest.raises(SchemaError, match="need column _stream, _id, _fields, .*Declare"):
        route_dead_letters(spark.range(1), "true", "x")
    frame = spark.sql("SELECT '' AS _stream, '' AS _id, map('a', 'b') AS _fields")
    with pytest.raises(SchemaError, match="'_fields' is map<string,string>, .*Declare it MAP<BINARY, BINARY>"):
        route_dead_letters(frame, "true", "x")


def test_dead_letters_of_a_replayed_batch_are_written_once_where_the_write_has_a_name(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    """The function fails after its writes, and the batch is replayed by another run of the query."""
    ids = fill(server)
    failing = [True]

    def batch(rows: DataFrame, number: int) -> None:
        good, letters = route_dead_letters(rows, "n % 2 = 1", "odd", at=F.col("failed_at"))
        for name, frame in (("letters", letters), ("good", good.selectExpr("coalesce(n, -1) AS n"))):
            write = frame.repartition(3).write.format("rstream").mode("append")
            write.options(url=server.url, stream=name, transaction=name).save()
        if failing[0]:
            raise RuntimeError("fails after its writes")

    def run() -> None:
        entries = read_stream(spark, server, SCHEMA, streams="s").withColumn("failed_at", F.current_timestamp())
        query = (
            entries.writeStream.foreachBatch(batch)
            .option("checkpointLocation", str(tmp_path / "once")).trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()

    with pytest.raises(Exception, match="fails after its writes"):
        run()
    first = dead_letters_in(server, "letters")
    assert [envelope["id"].encode() for _, envelope in first] == [ids[n] for n in (1, 3, 5, 7)]
    failing[0] = False
    run()
    with server.client() as client:
        assert client.xlen("good") == 6
    assert dead_letters_in(server, "letters") == first


def test_the_time_of_a_batch_is_its_current_timestamp_also_when_it_is_run_again(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    fill(server)
    times: list[tuple[int, int]] = []

    def batch(rows: DataFrame, number: int) -> None:
        [now] = rows.selectExpr("unix_millis(now) AS now").distinct().collect()
        times.append((time_of_batch(rows.sparkSession), now["now"]))
        if len(times) == 1:
            raise RuntimeError("fails after its writes")

    def run() -> None:
        entries = read_stream(spark, server, SCHEMA, streams="s").withColumn("now", F.current_timestamp())
        writer = entries.writeStream.foreachBatch(batch).option("checkpointLocation", str(tmp_path / "time"))
        writer.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(Exception, match="fails after its writes"):
        run()
    run()
    assert times == [times[0]] * 2
    assert times[0][0] == times[0][1]
