"""What Spark 4.2 lets a user change of a checkpoint: its named sources, and the number of its state partitions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from inspect import signature
from pathlib import Path

import pytest
from pyspark.errors import IllegalArgumentException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

from tests.connector.spark.streams import read_stream
from tools.servers.server import Server

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not hasattr(DataStreamReader, "name"), reason="Spark 4.2 and newer name a query's sources"),
]
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
# Spark 4.3 sets the second one by itself.
EVOLUTION = {
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true",
    "spark.sql.streaming.offsetLog.formatVersion": "2",
}


@pytest.fixture
def settings(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[None]:
    """Settings of Spark that a test names, until it ends."""
    for name, value in request.param.items():
        spark.conf.set(name, value)
    yield
    for name in request.param:
        spark.conf.unset(name)


def named_source(spark: SparkSession, server: Server, name: str) -> DataFrame:
    """A streaming frame of the stream of this name, whose source has the same name."""
    options = {"url": server.url, "group": "g", "startingOffsets": "earliest", "streams": name}
    return spark.readStream.format("rstream").name(name).schema("n INT").options(**options).load()


def run_into_stream(frame: DataFrame, server: Server, checkpoint: Path) -> None:
    """Run the query to the end of its streams. It writes exactly once into stream `out`."""
    writer = frame.writeStream.format("rstream").options(url=server.url, stream="out")
    writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()


def add(server: Server, stream: str, *numbers: int) -> None:
    with server.client() as client:
        for n in numbers:
            client.xadd(stream, {"n": n})


def written(server: Server) -> list[int]:
    """The numbers in stream `out`, sorted."""
    with server.client() as client:
        return sorted(int(fields[b"n"]) for _, fields in client.xrange("out"))


@pytest.mark.long
@pytest.mark.parametrize("settings", [EVOLUTION], indirect=True)
def test_sources_are_added_to_and_removed_from_a_union(
    spark: SparkSession, server: Server, tmp_path: Path, settings: None
) -> None:
    """Each entry is written once, also those that are added while their source is not in the query."""

    def run(*names: str) -> list[int]:
        first, *others = [named_source(spark, server, name) for name in names]
        for other in others:
            first = first.union(other)
        run_into_stream(first, server, tmp_path / "checkpoint")
        return written(server)

    add(server, "a", 1, 2)
    add(server, "b", 101)
    assert run("a", "b") == [1, 2, 101]
    add(server, "a", 3)
    add(server, "c", 201, 202)
    assert run("a", "b", "c") == [1, 2, 3, 101, 201, 202]
    add(server, "a", 4)
    add(server, "b", 102)
    assert run("c", "a") == [1, 2, 3, 4, 101, 201, 202]
    assert run("b", "a") == [1, 2, 3, 4, 101, 102, 201, 202]


@pytest.mark.long
@pytest.mark.parametrize("settings", [{"spark.sql.streaming.stateStore.providerClass": ROCKSDB}], indirect=True)
def test_a_repartitioned_checkpoint_goes_on_after_the_remedy(
    spark: SparkSession, server: Server, tmp_path: Path, settings: None
) -> None:
    """Spark writes a batch that no sink receives. The sink cannot tell it from a lost batch."""
    checkpoint = tmp_path / "checkpoint"

    def run() -> list[int]:
        rows = read_stream(spark, server, "n INT", streams="a").dropDuplicates(["n"])
        run_into_stream(rows, server, checkpoint)
        return written(server)

    add(server, "a", 1, 2, 3)
    assert run() == [1, 2, 3]
    add(server, "a", 3, 4)
    assert run() == [1, 2, 3, 4]
    spark._streamingCheckpointManager.repartition(str(checkpoint), 3)
    add(server, "a", 4, 5, 1)
    with pytest.raises(StreamingQueryException, match="RSTREAM_LEDGER") as stopped:
        run()
    remedy = re.search(r'HSET (\S+) "" (\d+)', str(stopped.value))
    assert remedy is not None
    assert "repartitioned" in str(stopped.value)
    with server.client() as client:
        client.hset(remedy[1], "", remedy[2])
    assert run() == [1, 2, 3, 4, 5]
    add(server, "a", 6, 5)
    assert run() == [1, 2, 3, 4, 5, 6]


@pytest.mark.skipif("realTime" not in signature(DataStreamWriter.trigger).parameters, reason="no real-time mode")
@pytest.mark.parametrize(
    ("sink", "mode", "limit"),
    [("rstream", "append", "OPERATOR_OR_SINK_NOT_IN_ALLOWLIST"), ("console", "update", "INPUT_STREAM_NOT_SUPPORTED")],
)
def test_spark_refuses_real_time_mode(
    spark: SparkSession, server: Server, tmp_path: Path, sink: str, mode: str, limit: str
) -> None:
    """The query stops with Spark's error before it creates a group or writes an entry."""
    add(server, "a", 1)
    writer = read_stream(spark, server, "n INT", streams="a").writeStream.format(sink).outputMode(mode)
    writer = writer.options(url=server.url, stream="out", checkpointLocation=str(tmp_path))
    with pytest.raises((IllegalArgumentException, StreamingQueryException), match=limit):
        writer.trigger(realTime="5 seconds").start().awaitTermination(20)  # type: ignore[call-overload]
    with server.client() as client:
        assert not client.exists("out")
        assert not client.xinfo_groups("a")
