"""A function of foreachBatch that skips a batch which it has written, and functions that read a part of a batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQueryException

from tests.connector.spark.streams import read_stream, run_to_the_end
from tools.servers.server import Server
from tools.waiting import until

pytestmark = pytest.mark.spark


class KilledError(Exception):
    """Stands for a driver that dies between the end of the function and Spark's commit."""


def skip(batch: DataFrame) -> None:
    """Return early: the batch was written."""


def read_first_rows(batch: DataFrame) -> None:
    batch.limit(1).collect()
    batch.show(1)


@pytest.mark.parametrize(("again", "retried"), [(skip, False), (skip, True), (read_first_rows, False)])
def test_dead_letters_outlive_a_replay_that_does_not_read_them(
    spark: SparkSession, server: Server, tmp_path: Path, again: Callable[[DataFrame], None], retried: bool
) -> None:
    with server.client() as client:
        for n in (*range(5), "bad", *range(5, 10)):
            client.xadd("s", {"n": n})
    runs: list[int] = []

    def write(batch: DataFrame, number: int) -> None:
        runs.append(number)
        if runs == [0]:
            assert len(batch.collect()) == 10
            raise KilledError
        if runs == [0, 0]:
            again(batch)
        else:
            batch.collect()  # the retry

    options = {"mode": "DEADLETTER", "deadLetterStream": "dead", **({"retryDelay": "1ms"} if retried else {})}

    def run(trigger: dict[str, object]) -> None:
        rows = read_stream(spark, server, "n INT", streams="s", **options)
        writer = rows.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "checkpoint"))
        if "availableNow" in trigger:
            run_to_the_end(writer.trigger(**trigger).start)
            return
        query = writer.trigger(**trigger).start()
        try:
            with server.client() as client:
                until(lambda: client.xlen("dead") > 0 or query.exception(), "there is no dead letter")
            assert query.exception() is None
        finally:
            query.stop()

    with pytest.raises(StreamingQueryException, match="KilledError"):
        run({"availableNow": True})
    run({"processingTime": "0 seconds"} if retried else {"availableNow": True})
    with server.client(decode_responses=True) as client:
        assert [fields["n"] for _, fields in client.xrange("dead")] == ["bad"]
    assert runs[:2] == [0, 0]
