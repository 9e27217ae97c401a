"""Inside Spark, on both servers: streams that come late, checkpoints that are old copies, streams that are dropped."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import redis
from click.testing import CliRunner
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from spark_streams.cli import main
from spark_streams.connector.spark.data_source import HAS_READ_LIMITS
from tests.connector.spark.streams import read_stream, run_to_the_end, start, written
from tools.servers.server import Server
from tools.waiting import until

pytestmark = pytest.mark.spark


def add(client: redis.Redis, stream: str, first: int, last: int) -> None:
    """Entries n = first … last-1."""
    for n in range(first, last):
        client.xadd(stream, {"n": n})


def ns(spark: SparkSession, folder: Path) -> list[int]:
    """Column n of all that was written."""
    return sorted(row.n for row in written(spark, folder).collect())


def read_again(spark: SparkSession, frame: DataFrame, folder: Path) -> list[int]:
    """The same of one more run that goes on with the checkpoint."""
    out: list[int] = []
    writer = frame.writeStream.foreachBatch(lambda rows, _: out.extend(row.n for row in rows.collect()))
    writer = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
    run_to_the_end(writer.start)
    return sorted(out)


def run(frame: DataFrame, folder: Path) -> StreamingQuery:
    """To the end of what is there."""
    return run_to_the_end(lambda: start(frame, folder))[-1]


@pytest.mark.parametrize("when", ["none at the start", "all rotated away"])
def test_a_stream_that_appears_where_no_other_has_the_group_is_read_from_its_first_entry(
    spark: SparkSession, server: Server, client: redis.Redis, tmp_path: Path, when: str
) -> None:
    """startingOffsets is `latest`, which is about streams that are there when the query begins."""
    frame = read_stream(spark, server, "n INT", streamsPattern="o:*", startingOffsets="latest", failOnDataLoss="false")
    wanted = list(range(10, 15))
    if when == "all rotated away":
        add(client, "o:1", 0, 3)
        run(frame, tmp_path)
        add(client, "o:1", 3, 6)
        run(frame, tmp_path)
        client.delete("o:1")
        wanted = [3, 4, 5, *wanted]
    else:
        run(frame, tmp_path)
    add(client, "o:2", 10, 15)
    run(frame, tmp_path)
    assert ns(spark, tmp_path) == wanted
    assert client.xpending("o:2", "g")["pending"] == 0


def test_a_stopped_query_replays_a_part_with_its_checkpoint(
    spark: SparkSession, server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    frame = read_stream(spark, server, "n INT", streams="s")
    add(client, "s", 0, 20)
    run(frame, tmp_path)
    tenth = client.xrange("s", count=11)[-1][0]
    words = ["replay", "s", "--group", "g", "--from", tenth, "--yes", "--url", server.url]
    until(lambda: CliRunner().invoke(main, words).exit_code == 0, "the query's process has ended: it may be replayed")
    add(client, "s", 20, 25)
    run(frame, tmp_path)
    assert ns(spark, tmp_path) == sorted([*range(20), *range(10, 20), *range(20, 25)])
    assert client.xpending("s", "g")["pending"] == 0


@pytest.mark.parametrize("gone", ["an older copy", "the last commits"])
def test_a_checkpoint_that_was_rolled_back_reads_again_or_says_so(
    spark: SparkSession, server: Server, client: redis.Redis, tmp_path: Path, gone: str
) -> None:
    frame = read_stream(spark, server, "n INT", streams="s")
    checkpoint, copy = tmp_path / "checkpoint", tmp_path / "copy"
    for step in range(3):
        add(client, "s", 10 * step, 10 * step + 10)
        run(frame, tmp_path)
        if step == 0:
            shutil.copytree(checkpoint, copy)
    if gone == "an older copy":
        shutil.rmtree(checkpoint)
        shutil.copytree(copy, checkpoint)
        with pytest.raises(
            StreamingQueryException, match="RSTREAM_DATA_LOSS.* this is an older copy of the checkpoint"
        ):
            run(frame, tmp_path)
        lenient = read_stream(spark, server, "n INT", streams="s", failOnDataLoss="false")
        assert read_again(spark, lenient, tmp_path) == list(range(10, 30))
    else:
        for file in checkpoint.glob("commits/*2*"):
            file.unlink()
        for file in checkpoint.glob("commits/.2*"):
            file.unlink()
        assert read_again(spark, frame, tmp_path) == list(range(20, 30))
    assert client.xpending("s", "g")["pending"] == 0


@pytest.mark.skipif(not HAS_READ_LIMITS, reason="this Spark does not tell a Python source which trigger it has")
def test_a_trigger_that_says_nothing_of_commits_is_refused(
    spark: SparkSession, server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    """Before anything is given to the query."""
    add(client, "s", 0, 10)
    frame = read_stream(spark, server, "n INT", streams="s")
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "once"))
    with pytest.raises(StreamingQueryException, match=r"RSTREAM_UNSUPPORTED.*Use trigger\(availableNow=True\)"):
        writer.trigger(once=True).start().awaitTermination()
    assert client.xinfo_groups("s") == []
    without = read_stream(spark, server, "n INT", streams="s", group="h", noAck="true")
    writer = without.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "noack"))
    query = writer.trigger(once=True).start()
    query.awaitTermination()
    assert query.lastProgress["numInputRows"] == 10


@pytest.mark.parametrize("strict", ["true", "false"])
def test_a_stream_that_is_no_longer_asked_for_may_be_deleted(
    spark: SparkSession, server: Server, client: redis.Redis, tmp_path: Path, strict: str
) -> None:
    add(client, "a", 0, 5)
    add(client, "b", 5, 10)
    run(read_stream(spark, server, "n INT", streams="a,b", failOnDataLoss=strict), tmp_path)
    client.delete("b")
    add(client, "a", 10, 15)
    only = read_stream(spark, server, "n INT", streams="a", failOnDataLoss=strict)
    run(only, tmp_path)
    run(only, tmp_path)
    assert ns(spark, tmp_path) == list(range(15))


def test_a_loss_without_a_later_entry_is_remembered_by_the_checkpoint(
    spark: SparkSession, server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    """failOnDataLoss=false: one batch without entries keeps the corrected position, and no later run stops."""
    add(client, "s", 0, 3)
    run(read_stream(spark, server, "n INT", streams="s"), tmp_path)
    add(client, "s", 3, 5)
    client.xtrim("s", maxlen=0, approximate=False)
    for strict in ("false", "false", "true"):
        run(read_stream(spark, server, "n INT", streams="s", failOnDataLoss=strict), tmp_path)
        offsets = sorted((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"))
        assert [one.name for one in offsets] == ["0", "1"]
    add(client, "s", 5, 7)
    run(read_stream(spark, server, "n INT", streams="s"), tmp_path)
    assert ns(spark, tmp_path) == [0, 1, 2, 5, 6]
