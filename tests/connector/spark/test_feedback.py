"""A query with a pattern does not read what it writes: its dead letters, and the rows of its sink."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from spark_streams import route_dead_letters
from tests.connector.deadletter.making import redrive
from tests.connector.spark.streams import read_stream, run_to_the_end
from tools.servers.server import Server

pytestmark = pytest.mark.spark

SCHEMA = "n INT, _stream STRING, _id STRING, _fields MAP<BINARY, BINARY>"


def fill(server: Server, stream: str = "lp:1", count: int = 4) -> None:
    """Entries 0, 1, 2 …: the odd ones are bad."""
    with server.client() as client:
        for n in range(count):
            client.xadd(stream, {"n": n})


def run(frame: DataFrame, folder: Path, server: Server, to: str = "lp:out", **options: str) -> None:
    """Write a frame to a stream, until all entries that are there now are read."""
    writer = frame.writeStream.format("rstream").options(url=server.url, stream=to, **options)
    run_to_the_end(writer.option("checkpointLocation", str(folder / "sink")).trigger(availableNow=True).start)


def run_each(frame: DataFrame, folder: Path, batch: Callable[[DataFrame, int], Any]) -> None:
    """Run a function for each micro-batch, until all entries that are there now are read."""
    writer = frame.writeStream.foreachBatch(batch).option("checkpointLocation", str(folder / "each"))
    run_to_the_end(writer.trigger(availableNow=True).start)


def lengths(server: Server, *streams: str) -> list[int]:
    with server.client() as client:
        return [client.xlen(stream) for stream in streams]


def route(frame: DataFrame, group: str = "g") -> DataFrame:
    return route_dead_letters(frame, "n % 2 = 1", "odd", group=group).letters


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_routed_dead_letters_are_not_read_again(
    spark: SparkSession, server: Server, tmp_path: Path, delivery: str
) -> None:
    """Neither by the query that writes them nor by another one of the pattern, and a redrive sends them back."""
    fill(server)
    for _ in range(3):
        run(route(read_stream(spark, server, SCHEMA, streamsPattern="lp*")), tmp_path, server, "lp:dead",
            delivery=delivery)  # fmt: skip
    assert lengths(server, "lp:1", "lp:dead") == [4, 2]
    report = redrive(server, stream="lp:dead")
    assert (report.moved, report.refused) == (2, 0)
    assert lengths(server, "lp:1", "lp:dead") == [6, 0]


def test_dead_letters_of_foreach_batch_are_not_read_again(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    fill(server)

    def batch(rows: DataFrame, number: int) -> None:
        write = route(rows, group="").repartition(2).write.format("rstream").mode("append")
        write.options(url=server.url, stream="lp:dead", transaction="letters").save()

    for _ in range(3):
        run_each(read_stream(spark, server, SCHEMA, streamsPattern="lp*"), tmp_path, batch)
    assert lengths(server, "lp:dead") == [2]
    assert redrive(server, stream="lp:dead").moved == 2


def test_dead_letters_that_an_entry_forges_record_no_origin(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    """The query copies entries, whose fields a producer chooses, and columns that are called like those of letters."""
    with server.client() as client:
        client.xadd("in", {"dl.stream": "payments", "dl.group": "g", "dl.id": "1-0"})
    frame = read_stream(spark, server, "`dl.stream` STRING, `dl.group` STRING, `dl.id` STRING", streams="in")
    run(frame, tmp_path, server, "copy")
    with server.client() as client:
        assert client.xlen("copy") == 1
        assert client.keys("rstream:origins:*") == []


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_sink_that_the_querys_own_pattern_matches_writes_nothing(
    spark: SparkSession, server: Server, tmp_path: Path, delivery: str
) -> None:
    """The error names the option, and with it the query writes each row once."""
    fill(server)
    message = r"RSTREAM_INVALID_OPTION\].*'lp:out'.*streamsPattern 'lp\*'.*streamsExcept=lp:out"
    for _ in range(2):
        with pytest.raises(StreamingQueryException, match=message):
            run(read_stream(spark, server, "n INT", streamsPattern="lp*"), tmp_path, server, delivery=delivery)
    assert lengths(server, "lp:1", "lp:out") == [4, 0]
    for _ in range(2):
        frame = read_stream(spark, server, "n INT", streamsPattern="lp*", streamsExcept="lp:out")
        run(frame, tmp_path, server, delivery=delivery)
    assert lengths(server, "lp:1", "lp:out") == [4, 4]


def test_a_write_of_foreach_batch_to_a_stream_of_the_pattern_writes_nothing(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    fill(server)

    def batch(rows: DataFrame, number: int) -> None:
        rows.selectExpr("n", "'lp:' || n AS to").write.format("rstream").mode("append").options(
            url=server.url, streamColumn="to"
        ).save()

    with pytest.raises(StreamingQueryException, match=r"streamsExcept=lp:[0-3]"):
        run_each(read_stream(spark, server, "n INT", streamsPattern="lp:*"), tmp_path, batch)
    assert lengths(server, "lp:1", "lp:0", "lp:2") == [4, 0, 0]


def test_dead_letters_into_a_stream_with_entries_of_producers_are_refused(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    """The source reads this stream, because a dead letter hides no entry of a producer."""
    fill(server)
    with pytest.raises(StreamingQueryException, match=r"streamsExcept=lp:1"):
        run(route(read_stream(spark, server, SCHEMA, streamsPattern="lp*")), tmp_path, server, "lp:1")
    assert lengths(server, "lp:1") == [4]


def test_another_query_reads_what_a_query_has_written(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    fill(server)
    run(read_stream(spark, server, "n INT", streamsPattern="lp*"), tmp_path / "first", server, "out:1")
    run(read_stream(spark, server, "n INT", streamsPattern="out*"), tmp_path / "second", server, "end")
    assert lengths(server, "out:1", "end") == [4, 4]
