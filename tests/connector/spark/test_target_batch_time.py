"""targetBatchTime inside Spark, on both servers: the batches follow the time that Spark says they took."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import redis
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import spark_streams
from spark_streams.connector.spark.data_source import HAS_READ_LIMITS
from tests.connector.spark.streams import read_stream
from tools.driving import add
from tools.servers.server import Server

pytestmark = pytest.mark.spark

ROW = 0.0001  # seconds of a row in the sink
ENTRIES = 20_000
TARGET = 1.5


def write(rows: DataFrame, _batch: int) -> None:
    time.sleep(rows.count() * ROW)


def run(spark: SparkSession, server: Server, folder: Path, **options: str) -> None:
    frame = read_stream(spark, server, "n INT", streams="s", targetBatchTime="1500ms", **options)
    writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()


def fill(client: redis.Redis) -> None:
    for first in range(0, ENTRIES, 10_000):
        add(client, 10_000, first=first)


@pytest.mark.skipif(not HAS_READ_LIMITS, reason="before Spark 4.2 the option is refused")
def test_the_limit_of_each_batch_follows_the_time_of_those_before_it(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    """And a second run begins with no more entries than the last batch of the first one had."""
    with server.client() as client:
        fill(client)
        file, log = tmp_path / "metrics", tmp_path / "log"
        with spark_streams.watch(spark, server.url, log=log, metrics_file=file):
            run(spark, server, tmp_path)
            fill(client)
            run(spark, server, tmp_path)
        assert client.xpending("s", "g")["pending"] == 0
    runs: dict[str, list[dict[str, Any]]] = {}
    for line in map(json.loads, log.read_text().splitlines()):
        if line["event"] == "progress":
            [group] = line["groups"]
            runs.setdefault(line["run"], []).append({**line, **group})
    first, second = runs.values()
    assert first[0]["limit"] == 1_000
    assert second[0]["limit"] == min(1_000, max(100, first[-1]["rows"]))
    for batches in (first, second):
        assert sum(one["rows"] for one in batches) == ENTRIES
        assert all(one["rows"] == one["limit"] for one in batches[:-1])
        for place, batch in enumerate(batches[1:], 1):
            before = batches[max(0 if place == 1 else 1, place - 3) : place]  # the first one counts only alone
            alike = [one for one in before if one["rows"] >= 0.75 * before[-1]["rows"]]
            expected = min(TARGET * min(_rate(alike), _rate(before[-1:])), 10 * max(one["rows"] for one in before))
            if place == 1:
                expected = max(expected, before[0]["rows"] // 2)
            # The source's time of a batch has a little more than Spark's, up to the next call, and a little less: not
            # that of the call that plans it. Both take longer on a busy machine.
            assert 0.6 * expected <= batch["limit"] <= 1.3 * expected or batch["limit"] == 100
    [sample] = [one for one in file.read_text().splitlines() if one.startswith("rstream_batch_limit_entries{")]
    assert float(sample.rpartition(" ")[2]) == second[-1]["limit"]


def _rate(batches: list[dict[str, Any]]) -> float:
    return float(sum(one["rows"] for one in batches) / sum(one["batch_ms"] / 1000 for one in batches))


@pytest.mark.skipif(HAS_READ_LIMITS, reason="Spark 4.2 and newer have it")
def test_before_spark_4_2_the_option_is_refused(spark: SparkSession, engine_server: Server, tmp_path: Path) -> None:
    with pytest.raises(StreamingQueryException, match="RSTREAM_UNSUPPORTED.*targetBatchTime needs Spark 4.2 or newer"):
        run(spark, engine_server, tmp_path)


def test_a_single_batch_of_everything_is_refused(spark: SparkSession, engine_server: Server, tmp_path: Path) -> None:
    frame = read_stream(spark, engine_server, "n INT", streams="s", targetBatchTime="1s", noAck="true")
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    with pytest.raises(StreamingQueryException, match="RSTREAM_UNSUPPORTED.*targetBatchTime"):
        writer.trigger(once=True).start().awaitTermination()
