"""A query with `archivePath` inside Spark: stopped amid the archive, it goes on, and each entry comes once."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.connector.source.archive.archived import Archiver
from tests.connector.spark.streams import drain, read_stream, start, written
from tools.servers.server import Server
from tools.waiting import until

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("ordered", ["false", "true"])
def test_a_query_reads_the_archive_and_then_the_stream(
    spark: SparkSession, server: Server, tmp_path: Path, ordered: str
) -> None:
    client = server.client(decode_responses=True)
    archiver = Archiver(client, tmp_path / "archive")
    for n in range(90):
        client.xadd("s", {"n": n})
    for count in (40, 20):
        archiver.archive(count)
    options = {"streams": "s", "archivePath": str(archiver.path), "maxEntriesPerTrigger": "15", "ordered": ordered}
    frame = read_stream(spark, server, "n INT, _id STRING", **options)
    query = start(frame, tmp_path, once=False)
    until(lambda: len(query.recentProgress) >= 2, "two batches were not committed")
    query.stop()
    archiver.archive(30, trim=False)
    for n in range(90, 100):
        client.xadd("s", {"n": n})
    rows = drain(frame, tmp_path).collect()
    assert sorted(row["n"] for row in rows) == list(range(100))
    assert len({row["_id"] for row in rows}) == 100
    client.xadd("s", {"n": 100})
    drain(read_stream(spark, server, "n INT, _id STRING", streams="s"), tmp_path)
    assert written(spark, tmp_path).count() == 101
