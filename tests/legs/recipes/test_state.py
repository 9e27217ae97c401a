"""State and windows when a batch is run again: the same as what all entries, read once, come to."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_streams.connector.spark.data_source import HAS_READ_LIMITS
from tests.legs.recipes.conftest import recipe_of
from tests.legs.recipes.feed import Feed
from tools.servers.server import Server

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not HAS_READ_LIMITS, reason="before Spark 4.2 the last windows wait for a later run"),
]


def test_a_batch_that_is_run_again_finds_the_state_that_it_began_with(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    """As after a driver that was killed between the sink's last write and Spark's commit."""
    writers = {
        "totals": recipe_of("running_totals").totals(spark, server.url),
        "windows": recipe_of("late_rows").windows(spark, server.url),
    }

    def drain() -> None:
        placed = [writer.option("checkpointLocation", str(tmp_path / name)) for name, writer in writers.items()]
        for query in [writer.trigger(availableNow=True).start() for writer in placed]:
            query.awaitTermination()

    with server.client(decode_responses=True) as client:
        feed = Feed(client, apart=120_000)
        for _ in range(2):
            feed.round()
            feed.round()
            drain()
        for name in writers:
            commits = tmp_path / name / "commits"
            last = max(int(file.name) for file in commits.iterdir() if file.name.isdigit())
            for file in (str(last), f".{last}.crc"):
                (commits / file).unlink()
        feed.round()
        feed.close_the_windows()
        drain()
        for name in writers:
            feed.check(name, tmp_path)
