"""An entry that kills the query, by an exception or with the Python worker, becomes one dead letter; the others flow.

test_watch.py has an entry that raises each time, tests/connector/source/pending/test_poison_batch.py several that kill.
"""

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

from tests.connector.spark.streams import read_stream, run_to_the_end
from tools.servers.server import Server, engine_at_length

pytestmark = pytest.mark.spark


def deadly(raised: Path) -> Callable[[int], int]:
    """Entry 31 raises, the next time it kills the worker, and so on. raised: a file that exists after it has raised."""

    def work(n: int) -> int:
        if n == 31 and raised.exists():
            raised.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        if n == 31:
            raised.touch()
            raise ValueError("31 is refused")
        return n

    return work


def start_until_it_ends(make: Callable[[], DataFrame], server: Server, checkpoint: Path) -> int:
    """Start the query again each time that it dies, while entries keep coming; how many starts it took."""
    client: redis.Redis = server.client(decode_responses=True)
    for starts in range(1, 40):
        writer = (
            make()
            .writeStream.format("rstream")
            .options(url=server.url, stream="out", chunkSize="5", checkpointLocation=str(checkpoint))
            .trigger(availableNow=True)
        )
        try:
            run_to_the_end(writer.start)
        except StreamingQueryException:
            for n in range(20):
                client.xadd("in", {"n": 1000 * starts + n})
            continue
        return starts
    raise AssertionError("it did not end")


@engine_at_length
def test_the_entry_that_kills_the_query_is_found_and_the_rest_is_written_once(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    client: redis.Redis = server.client(decode_responses=True)
    for n in range(48):
        client.xadd("in", {"n": n})
    worked = F.udf(deadly(tmp_path / "raised"), "int", useArrow=False)
    options = {"streams": "in", "maxDeliveries": "2", "deadLetterStream": "dead", "entriesPerPartition": "25"}

    def make() -> DataFrame:
        return read_stream(spark, server, "n INT", **options).select(worked("n").alias("n"))

    starts = start_until_it_ends(make, server, tmp_path / "checkpoint")
    out = Counter(int(fields["n"]) for _, fields in client.xrange("out"))
    more = [1000 * start + n for start in range(1, starts) for n in range(20)]
    assert out == Counter([n for n in range(48) if n != 31] + more)
    letters = [(fields["n"], fields["dl.reason"]) for _, fields in client.xrange("dead")]
    assert letters == [("31", "poison")]
    assert client.xpending("in", "g")["pending"] == 0
    assert starts <= 10


@pytest.mark.long
@engine_at_length
def test_what_the_query_needs_may_be_away_for_any_number_of_restarts(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    client: redis.Redis = server.client(decode_responses=True)
    for n in range(16):
        client.xadd("in", {"n": n})
    found: list[int] = []
    away = True

    def write(batch: DataFrame, _: int) -> None:
        rows = [row.n for row in batch.collect()]
        if away and rows:
            raise ConnectionError("nobody is there")
        found.extend(rows)

    def start() -> str:
        options = {"streams": "in", "maxDeliveries": "1", "deadLetterStream": "dead"}
        writer = (
            read_stream(spark, server, "n INT", **options)
            .writeStream.foreachBatch(write)
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
        )
        try:
            run_to_the_end(writer.start)
        except StreamingQueryException as error:
            return str(error)
        return ""

    for _ in range(6):
        assert "nobody is there" in start()
    away = False
    assert start() == ""
    assert sorted(found) == list(range(16))
    assert client.xlen("dead") == 0
    assert client.xpending("in", "g")["pending"] == 0
