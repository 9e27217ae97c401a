"""Shards inside Spark: written by key, read in order in parallel, and the errors that say what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_streams.connector.shards.names import shards_of
from tests.connector.spark.streams import append, read_stream, run_to_the_end
from tools.servers.server import Server

pytestmark = pytest.mark.spark


def test_each_key_stays_in_order_from_shards_to_shards(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    rows = spark.range(0, 4_000, 1, 1).select(
        F.concat(F.lit("é"), F.col("id") % 50).alias("key"), F.col("id").alias("n")
    )
    append(rows, server, "orders", shards="4", shardBy="key")
    frame = read_stream(
        spark, server, "key STRING, n LONG", streams="orders", ordered="true", maxEntriesPerTrigger="1500"
    )

    def begin():  # type: ignore[no-untyped-def]
        writer = frame.select("key", (F.col("n") + 1).alias("n")).writeStream.format("rstream")
        writer = writer.options(url=server.url, stream="next", shards="8", shardBy="key")
        return writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()

    run_to_the_end(begin)
    found: dict[str, list[int]] = {}
    with server.client(decode_responses=True) as client:
        for name in shards_of("next", 8):
            for _, fields in client.xrange(name):
                found.setdefault(fields["key"], []).append(int(fields["n"]))
    assert found == {f"é{key}": [n + 1 for n in range(key, 4_000, 50)] for key in range(50)}
    table = spark.read.format("rstream").options(url=server.url, streams="next", inferSchema="true").load()
    assert table.count() == 4_000
    with pytest.raises(Exception, match="RSTREAM_SHARDS.*is in 4 shards, but option shards=5"):
        append(rows, server, "orders", shards="5", shardBy="key")
