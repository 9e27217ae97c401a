"""The server's clock goes back or ahead while a query runs or between two runs: entries that are pending stay what they
are, whatever idle time the server answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from spark_streams.connector.source.stream_reader import StreamReader
from spark_streams.connector.spark.data_source import ReadMaxRows
from tools.driving import NEVER_AHEAD, SMALL, add, pending_count, read, reader
from tools.servers.moved_clock import Moved, running
from tools.servers.server import KINDS, skip_without_redis

TEN = ReadMaxRows(10)
MOVES = pytest.mark.parametrize("milliseconds", [-2_000, -60_000, 2_000, 60_000])


@pytest.fixture(scope="module", params=KINDS)
def running_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Moved]:
    if request.param == "redis":
        skip_without_redis()
    with running(request.param, tmp_path_factory.mktemp("clock")) as moved:
        yield moved


@pytest.fixture
def moved(running_server: Moved) -> Moved:
    """An empty server whose clock the test moves."""
    with running_server.server.client() as client:
        client.flushall()
    return running_server


@pytest.fixture
def client(moved: Moved) -> Iterator[redis.Redis]:
    with moved.server.client(decode_responses=True) as one:
        yield one


def rest_of(query: StreamReader, at: dict[str, Any]) -> list[int]:
    """Read from an offset to the end, in batches of ten, committing each one as Spark does."""
    rows: list[int] = []
    while (end := query.latestOffset(at, TEN)) != at:
        rows += read(query, at, end)
        at = end
    return rows


def time_of(client: redis.Redis) -> float:
    seconds, microseconds = client.time()
    return float(seconds + microseconds / 1e6)


@MOVES
def test_the_clock_of_the_server_is_moved(moved: Moved, client: redis.Redis, milliseconds: int) -> None:
    """What the others rest on: TIME follows, the idle time of a pending entry is never negative, and IDs still rise."""
    first = add(client, 1)[0]
    client.xgroup_create("s", "g", id="0")
    client.xreadgroup("g", "bob", {"s": ">"})
    before = time_of(client)
    moved.move(milliseconds)
    assert time_of(client) - before == pytest.approx(milliseconds / 1000, abs=1)
    [pending] = client.xpending_range("s", "g", "-", "+", 10)
    assert pending["time_since_delivered"] == pytest.approx(max(milliseconds, 0), abs=1_000)
    assert [int(part) for part in add(client, 1)[0].split("-")] > [int(part) for part in first.split("-")]


@MOVES
@pytest.mark.parametrize("options", [{}, {"failOnDataLoss": "false"}], ids=["strict", "lenient"])
def test_what_was_reserved_ahead_before_the_clock_moved_is_read_once(
    moved: Moved, client: redis.Redis, milliseconds: int, options: dict[str, str]
) -> None:
    """A run stops with one batch in its checkpoint and the next one reserved ahead. The next run reads all of both."""
    add(client, 50)
    one = reader(moved.server, limits=SMALL, **options)
    start = one.initialOffset()
    first = one.latestOffset(start, TEN)
    assert read(one, start, first) == list(range(10))
    second = one.latestOffset(first, TEN)
    assert read(one, first, second) == list(range(10, 20))
    one.stop()
    assert pending_count(client) > 10, "nothing is reserved ahead"
    moved.move(milliseconds)
    again = reader(moved.server, limits=SMALL, **options)
    assert read(again, first, second) == list(range(10, 20)), "the unfinished batch runs again"
    assert rest_of(again, second) == list(range(20, 50))
    assert pending_count(client) == 0
    assert "lost" not in again.reportLatestOffset()


@MOVES
def test_a_running_query_does_not_notice_that_the_clock_moved(
    moved: Moved, client: redis.Redis, milliseconds: int
) -> None:
    """The clock moves between a batch and the next one, which is reserved ahead."""
    add(client, 50)
    one = reader(moved.server, limits=SMALL)
    at, rows = one.initialOffset(), []
    while (end := one.latestOffset(at, TEN)) != at:
        rows += read(one, at, end)
        at = end
        if len(rows) == 20:
            moved.move(milliseconds)
    assert rows == list(range(50))
    assert pending_count(client) == 0


@MOVES
def test_a_batch_that_was_planned_before_the_clock_moved_is_acknowledged(
    moved: Moved, client: redis.Redis, milliseconds: int
) -> None:
    """The run dies after the sink has the batch; the next one commits it, and reads nothing of it again."""
    add(client, 20)
    one = reader(moved.server, limits=NEVER_AHEAD)
    start = one.initialOffset()
    end = one.latestOffset(start, TEN)
    assert read(one, start, end) == list(range(10))
    moved.move(milliseconds)
    again = reader(moved.server, limits=NEVER_AHEAD)
    assert rest_of(again, end) == list(range(10, 20))
    assert pending_count(client) == 0


@MOVES
def test_what_is_handed_over_after_the_clock_moved_is_read_once(
    moved: Moved, client: redis.Redis, milliseconds: int
) -> None:
    """In a shared group, while a batch is in flight. What is handed over within the range of that batch after the clock
    went back is a documented limit (docs/reference/unnoticed.md)."""
    ids = add(client, 5)
    client.xgroup_create("s", "g", id="0")
    client.xreadgroup("g", "bob", {"s": ">"}, count=2)
    one = reader(moved.server, limits=NEVER_AHEAD)
    start = one.initialOffset()
    end = one.latestOffset(start, TEN)
    assert read(one, start, end) == [2, 3, 4]
    moved.move(milliseconds)
    client.xclaim("s", "g", "spark", 0, ids[:2])
    assert sorted(rest_of(one, end)) == [0, 1]
    assert pending_count(client) == 0
