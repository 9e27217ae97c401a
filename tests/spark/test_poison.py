"""Entries that kill the query, by an exception or with the Python worker: each becomes one letter, the others flow."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.servers import Server
from tests.spark.streams import read_stream

pytestmark = pytest.mark.spark


def work(n: int) -> int:
    """Raises for one entry, kills the worker for another."""
    if n == 37:
        raise ValueError("37 is not to be borne")
    if n == 61:
        os.kill(os.getpid(), signal.SIGKILL)
    return n


def start_until_it_ends(make: Callable[[], DataFrame], server: Server, checkpoint: Path) -> int:
    """Start the query again each time that it dies; how many starts it took."""
    for starts in range(1, 20):
        query = (
            make()
            .writeStream.format("rstream")
            .options(url=server.url, stream="out", chunkSize="5", checkpointLocation=str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        except StreamingQueryException:
            continue
        return starts
    raise AssertionError("it did not end")


def test_the_entries_are_found_and_the_rest_is_written_once(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    client: redis.Redis = server.client(decode_responses=True)
    for n in range(100):
        client.xadd("in", {"n": n})
    worked = F.udf(work, "int", useArrow=False)
    options = {"streams": "in", "maxDeliveries": "2", "deadLetterStream": "dead", "entriesPerPartition": "30"}

    def make() -> DataFrame:
        return read_stream(spark, server, "n INT", **options).select(worked("n").alias("n"))

    starts = start_until_it_ends(make, server, tmp_path)
    out = Counter(int(fields["n"]) for _, fields in client.xrange("out"))
    assert out == Counter(n for n in range(100) if n not in (37, 61))
    letters = [(fields["n"], fields["dl.reason"]) for _, fields in client.xrange("dead")]
    assert letters == [("37", "poison"), ("61", "poison")]
    assert client.xpending("in", "g")["pending"] == 0
    assert starts <= 9
