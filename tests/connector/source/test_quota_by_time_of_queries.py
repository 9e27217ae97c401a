"""targetBatchTime in a query's reader, on both servers: what limits which batch, and what the progress reports."""

from __future__ import annotations

import logging
from typing import Any
from unittest import mock

import pytest
import redis
from pyspark.sql.types import LongType, StructField, StructType

from spark_streams.connector.datasource import RStreamDataSource
from spark_streams.connector.errors import UnsupportedError
from spark_streams.connector.source.offset import Offset
from spark_streams.connector.source.stream_reader import StreamReader
from spark_streams.connector.spark.data_source import ReadAllAvailable, ReadMaxRows
from tools.driving import ALL, NEVER_AHEAD, add, pending_count, read, reader
from tools.servers.server import Server


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def add_many(client: redis.Redis, count: int, stream: str = "s") -> None:
    for first in range(0, count, 1_000):
        add(client, min(1_000, count - first), stream, first)


def entries(end: dict[str, Any]) -> int:
    return Offset.from_json(end).held


def limit(one: StreamReader) -> int:
    told: int = one.reportLatestOffset()["limit"]
    return told


@pytest.mark.parametrize(
    "options", [{}, {"noAck": "true"}, {"maxBytesPerTrigger": "1gb"}, {"ordered": "true"}], ids=str
)
def test_the_limit_of_a_batch_follows_the_time_of_the_last_one(
    server: Server, client: redis.Redis, options: dict[str, str]
) -> None:
    """The progress has the limit. A pause after the batch does not count."""
    add_many(client, 8_000)
    clock = Clock()
    one = reader(server, now=clock, targetBatchTime="2s", **options)
    at = one.initialOffset()
    end = one.latestOffset(at, ALL)
    assert (entries(end), limit(one)) == (1_000, 1_000)
    assert read(one, at, end) == list(range(1_000))
    clock.now += 1
    last = one.latestOffset(end, ALL)
    assert (entries(last), limit(one)) == (2_000, 2_000)
    clock.now += 1
    rest = one.latestOffset(last, ALL)
    assert (entries(rest), limit(one)) == (4_000, 4_000)  # the first batch of the run no longer counts
    clock.now += 20
    final = one.latestOffset(rest, ALL)
    assert (entries(final), limit(one)) == (400, 400)


def test_no_batch_is_reserved_ahead_of_the_time_that_limits_it(server: Server, client: redis.Redis) -> None:
    add_many(client, 4_000)
    one = reader(server, now=Clock(), targetBatchTime="2s")
    one.latestOffset(one.initialOffset(), ALL)
    one.batches.worker.wait()
    assert pending_count(client) == 1_000


def test_a_pause_without_entries_is_in_no_batch(server: Server, client: redis.Redis) -> None:
    add_many(client, 1_000)
    clock = Clock()
    one = reader(server, now=clock, targetBatchTime="2s")
    at = one.initialOffset()
    end = one.latestOffset(at, ALL)
    clock.now += 1
    assert one.latestOffset(end, ALL) == end
    clock.now += 600
    assert one.latestOffset(end, ALL) == end
    clock.now += 600
    add_many(client, 3_000)
    assert entries(one.latestOffset(end, ALL)) == 2_000


def test_all_streams_share_the_limit(server: Server, client: redis.Redis) -> None:
    for stream in "abc":
        add_many(client, 1_000, stream)
    one = reader(server, targetBatchTime="2s", streams="a,b,c")
    end = one.latestOffset(one.initialOffset(), ALL)
    assert entries(end) == 1_000
    assert Offset.from_json(end).taken_from == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("most", "limits"),
    [("1500", [1_000, 1_500]), ("300", [300] * 2)],
)
def test_the_maximum_is_a_ceiling(server: Server, client: redis.Redis, most: str, limits: list[int]) -> None:
    add_many(client, 4_000)
    clock = Clock()
    one = reader(server, now=clock, targetBatchTime="2s", maxEntriesPerTrigger=most)
    at, told = one.initialOffset(), []
    for _ in limits:
        at = one.latestOffset(at, one.getDefaultReadLimit())
        told.append(limit(one))
        assert entries(at) == told[-1]
        clock.now += 1
    assert told == limits


def test_maxima_by_stream_hold_too(server: Server, client: redis.Redis) -> None:
    for stream in "ab":
        add_many(client, 2_000, stream)
    one = reader(server, targetBatchTime="2s", streams="a,b", maxEntriesPerTrigger='{"a": 100}')
    end = Offset.from_json(one.latestOffset(one.initialOffset(), ALL))
    assert {stream: end.new[stream].count for stream in "ab"} == {"a": 100, "b": 900}


def test_after_a_kill_the_batch_is_replayed_and_the_next_one_is_small(server: Server, client: redis.Redis) -> None:
    """Spark runs the planned batch again by its offsets. Its size is the history: nothing else is kept."""
    add_many(client, 8_000)
    clock = Clock()
    one = reader(server, now=clock, targetBatchTime="2s")
    at = one.initialOffset()
    end = one.latestOffset(at, ALL)
    clock.now += 0.5
    last = one.latestOffset(end, ALL)
    assert entries(last) == 4_000
    again = reader(server, now=clock, targetBatchTime="2s")
    assert read(again, end, last) == list(range(1_000, 5_000))
    assert "limit" not in again.reportLatestOffset()
    clock.now += 100  # of the replay, which had its old size
    first = again.latestOffset(last, ALL)
    assert (entries(first), limit(again)) == (1_000, 1_000)
    assert read(again, last, first) == list(range(5_000, 6_000))
    clock.now += 2
    assert entries(again.latestOffset(first, ALL)) == 1_000


def test_what_a_killed_run_has_reserved_is_limited_too(server: Server, client: redis.Redis) -> None:
    add_many(client, 3_000)
    one = reader(server)
    at = one.initialOffset()
    one.latestOffset(at, ALL)
    assert pending_count(client) == 3_000
    again = reader(server, targetBatchTime="2s")
    end = again.latestOffset(at, ALL)
    assert read(again, at, end) == list(range(1_000))


def test_available_now_ends_with_everything(server: Server, client: redis.Redis) -> None:
    add_many(client, 6_000)
    clock = Clock()
    one = reader(server, now=clock, targetBatchTime="2s")
    one.prepareForTriggerAvailableNow()
    at, sizes = one.initialOffset(), []
    add_many(client, 500)
    while (end := one.latestOffset(at, ALL)) != at:
        sizes.append(entries(end))
        one.commit(end)
        at = end
        clock.now += 1
    assert sizes == [1_000, 2_000, 3_000]  # the rest
    assert pending_count(client) == 0


def test_a_batch_that_is_full_does_not_wait_for_more(server: Server, client: redis.Redis) -> None:
    """minEntriesPerTrigger may be above what the time admits."""
    add_many(client, 2_500)
    one = reader(server, now=Clock(), limits=NEVER_AHEAD, targetBatchTime="2s", minEntriesPerTrigger="5000")
    at = one.initialOffset()
    end = one.latestOffset(at, ALL)
    assert entries(end) == 1_000
    rest = one.latestOffset(end, ALL)  # the batch took no time: ten times as many are admitted, and 1,500 wait
    assert rest == end


def test_without_the_option_nothing_is_limited_or_reported(server: Server, client: redis.Redis) -> None:
    add_many(client, 3_000)
    one = reader(server)
    assert entries(one.latestOffset(one.initialOffset(), ALL)) == 3_000
    assert "limit" not in one.reportLatestOffset()


def test_one_batch_of_everything_has_no_time_to_follow(server: Server, client: redis.Redis) -> None:
    add(client, 3)
    one = reader(server, targetBatchTime="2s", noAck="true")
    with pytest.raises(UnsupportedError, match=r"trigger\(once=True\) reads everything in one batch"):
        one.latestOffset(one.initialOffset(), ReadAllAvailable())


def test_before_spark_4_2_the_option_is_refused() -> None:
    """A run with availableNow is one batch there: each would be a tenth of the one before."""
    source = RStreamDataSource({"url": "redis://h", "streams": "s", "group": "g", "targetBatchTime": "2s"})
    with mock.patch("spark_streams.connector.spark.data_source.HAS_READ_LIMITS", False):
        refused = source.streamReader(StructType([StructField("n", LongType())]))
    with pytest.raises(UnsupportedError, match="targetBatchTime needs Spark 4.2 or newer.*set maxEntriesPerTrigger"):
        refused.initialOffset()


def test_a_target_that_no_limit_meets_is_told_once(
    server: Server, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    add_many(client, 3_000)
    clock = Clock()
    one = reader(server, now=clock, targetBatchTime="2s")
    at = one.initialOffset()
    with caplog.at_level(logging.WARNING, "spark_streams.source"):
        for _ in range(8):
            at = one.latestOffset(at, ReadMaxRows(1 << 61))
            clock.now += 60.5
    [record] = caplog.records
    assert record.getMessage().startswith(
        "targetBatchTime=2s cannot be met: a batch of 100 entries took 60.5 s, and no limit is below 100. If the query "
        "has a trigger interval, remove it"
    )
