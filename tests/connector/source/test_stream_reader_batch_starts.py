"""A Spark before 4.2, which does not say where a batch starts: the calls in the order in which it makes them."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from spark_streams.connector.errors import UnsupportedError
from spark_streams.connector.spark.data_source import StartingReader
from tools.driving import NEVER_AHEAD, add, reader
from tools.servers.server import Server


class OldSpark:
    """The driver's side of a query there: an offset log and a commit log, as the query's checkpoint has them."""

    def __init__(self, server: Server, logged: list[dict[str, Any]], committed: int, **options: str) -> None:
        self.reader = StartingReader(reader(server, limits=NEVER_AHEAD, **options))
        self.logged, self.committed = logged, committed
        self.read: list[list[int]] = []
        if logged:
            self.reader.partitions(logged[-1], logged[-1])
            if committed < len(logged):
                self.run_batch()

    def trigger(self, commits: bool = True) -> bool:
        """Whether there was a batch. commits: else the driver dies before that is written."""
        end = self.reader.latestOffset()
        begun = self.logged[-1] if self.logged else self.reader.initialOffset()
        if end == begun:
            return False
        self.logged.append(end)
        if len(self.logged) > 1:
            self.reader.commit(begun)
        self.run_batch(commits)
        return True

    def run_batch(self, commits: bool = True) -> None:
        start = self.logged[-2] if len(self.logged) > 1 else self.reader.initialOffset()
        shares = self.reader.partitions(start, self.logged[-1])
        self.read.append([row["n"] for share in shares for page in self.reader.read(share) for row in page.to_pylist()])
        if commits:
            self.committed = len(self.logged)


def pending(client: redis.Redis) -> int:
    return int(client.xpending("s", "g")["pending"])


def test_batch_after_batch_each_acknowledged_by_the_next_look(server: Server, client: redis.Redis) -> None:
    add(client, 10)
    spark = OldSpark(server, [], 0, maxEntriesPerTrigger="4")
    assert [spark.trigger() for _ in range(4)] == [True, True, True, False]
    assert spark.read == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert pending(client) == 0
    add(client, 1, first=10)
    assert spark.trigger()
    assert pending(client) == 1


def test_a_batch_that_was_not_committed_is_run_again_before_anything_is_acknowledged(
    server: Server, client: redis.Redis
) -> None:
    add(client, 10)
    first = OldSpark(server, [], 0, maxEntriesPerTrigger="4")
    first.trigger()
    first.trigger(commits=False)
    first.reader.stop()
    assert pending(client) == 4
    second = OldSpark(server, first.logged, first.committed, maxEntriesPerTrigger="4")
    assert second.read == [[4, 5, 6, 7]]
    assert pending(client) == 4
    assert [second.trigger(), second.trigger()] == [True, False]
    assert second.read[1:] == [[8, 9]]
    assert pending(client) == 0


def test_a_batch_that_was_committed_is_acknowledged_by_the_next_run(server: Server, client: redis.Redis) -> None:
    """As trigger(availableNow=True) runs there: one batch a run."""
    add(client, 10)
    logged: list[dict[str, Any]] = []
    found = []
    while True:
        spark = OldSpark(server, logged, len(logged), maxEntriesPerTrigger="4")
        if not spark.trigger():
            break
        found += spark.read
        spark.reader.stop()
    assert found == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert pending(client) == 0


def test_an_end_that_is_not_planned_yet_is_returned_again(server: Server, client: redis.Redis) -> None:
    add(client, 4)
    one = StartingReader(reader(server))
    end = one.latestOffset()
    add(client, 4, first=4)
    assert one.latestOffset() == end
    assert pending(client) == 4


def test_a_run_that_died_before_its_first_offset_was_written_reads_the_same(
    server: Server, client: redis.Redis
) -> None:
    add(client, 4)
    died = StartingReader(reader(server))
    died.latestOffset()
    died.stop()
    spark = OldSpark(server, [], 0)
    assert [spark.trigger(), spark.trigger()] == [True, False]
    assert spark.read == [[0, 1, 2, 3]]
    assert pending(client) == 0


def test_counts_of_the_run_stand_in_the_offset(server: Server, client: redis.Redis) -> None:
    add(client, 4)
    client.xgroup_create("s", "g", id="0")
    client.xreadgroup("g", "gone", {"s": ">"}, count=3)
    spark = OldSpark(server, [], 0, claimIdle="1ms")
    while spark.trigger():
        pass
    assert sorted(n for batch in spark.read for n in batch) == [0, 1, 2, 3]
    assert spark.logged[-1]["report"] == {"claimed": {"s": 3}}


def test_calls_in_another_order_are_refused_and_nothing_is_acknowledged(server: Server, client: redis.Redis) -> None:
    """As with spark.sql.streaming.triggerAvailableNowWrapper.enabled."""
    add(client, 10)
    first = OldSpark(server, [], 0, maxEntriesPerTrigger="4")
    first.trigger(commits=False)
    first.reader.stop()
    again = StartingReader(reader(server, maxEntriesPerTrigger="4"))
    again.latestOffset()
    with pytest.raises(UnsupportedError, match="triggerAvailableNowWrapper.enabled to false"):
        again.partitions(first.logged[-1], first.logged[-1])
    again.stop()
    spark = OldSpark(server, first.logged, 0, maxEntriesPerTrigger="4")
    while spark.trigger():
        pass
    assert sorted(n for batch in spark.read for n in batch) == list(range(10))
    assert pending(client) == 0
