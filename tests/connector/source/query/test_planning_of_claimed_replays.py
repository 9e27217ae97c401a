"""A query logs a batch while it is alone in its group, and dies. Another consumer joins, and claims entries of that
batch. The replay gives out what is still pending for the query, and reports the rest."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import pytest
import redis

from spark_streams.connector.errors import DataLossError
from spark_streams.connector.source.stream_reader import StreamReader
from spark_streams.connector.spark.data_source import ReadMaxRows
from tools.driving import ALL, NEVER_AHEAD, add, another_reader, pending_count, read, reader
from tools.servers.server import Server

LENIENT = {"failOnDataLoss": "false"}
FATES = pytest.mark.parametrize("fate", ["pending, it runs", "pending, it died", "acknowledged"])


@dataclass(frozen=True)
class Logged:
    """The batch that the first query has logged: offsets before and after it."""

    start: dict[str, Any]
    end: dict[str, Any]


@pytest.fixture
def logged(server: Server, client: redis.Redis) -> Logged:
    """Ten entries in one batch of a query that was alone, and died when its offset was logged."""
    add(client, 10)
    first = reader(server, limits=NEVER_AHEAD, consumer="first")
    start = first.initialOffset()
    end = first.latestOffset(start, ALL)
    assert end["streams"]["s"].split(" ")[2] == "10", "the query is alone, so it knows how many it has read"
    first.stop()
    return Logged(start, end)


def second_claims(server: Server, most: int, fate: str) -> list[int]:
    """Another consumer joins and claims; return what it reads."""
    time.sleep(0.08)
    second = another_reader(server, limits=NEVER_AHEAD, consumer="second", claimIdle="50ms")
    start = second.initialOffset()
    end = second.latestOffset(start, ReadMaxRows(most))
    found = read(second, start, end)
    if fate == "acknowledged":
        second.commit(end)
        assert second.latestOffset(end, ReadMaxRows(0)) == end
    if fate != "pending, it runs":
        second.stop()
    return found


def first_again(server: Server, **options: str) -> StreamReader:
    """The first query is started again, beside the second one."""
    return another_reader(server, limits=NEVER_AHEAD, consumer="first", **options)


@FATES
@pytest.mark.parametrize("most", [4, 10])
def test_a_strict_replay_names_the_entries_that_another_consumer_has_claimed(
    server: Server, logged: Logged, most: int, fate: str
) -> None:
    """Whether that one has them pending or has acknowledged them, no entry is given out a second time."""
    assert second_claims(server, most, fate) == list(range(most))
    with pytest.raises(DataLossError, match=f"{most} entries.* of a batch of 10 .*another client has acknowledged or"):
        read(first_again(server), logged.start, logged.end)


@FATES
@pytest.mark.parametrize("most", [4, 10])
def test_a_lenient_replay_reads_what_is_left_and_counts_the_rest(
    server: Server, logged: Logged, most: int, fate: str
) -> None:
    assert second_claims(server, most, fate) == list(range(most))
    again = first_again(server, **LENIENT)
    assert read(again, logged.start, logged.end) == list(range(most, 10))
    assert again.reportLatestOffset()["lost"] == {"s": most}


@pytest.mark.parametrize("options", [{}, LENIENT], ids=["strict", "lenient"])
def test_a_replay_beside_another_consumer_that_claimed_nothing_is_the_whole_batch(
    server: Server, client: redis.Redis, logged: Logged, options: dict[str, str]
) -> None:
    """The group is shared now, and all of the batch is still pending for the query."""
    second = another_reader(server, limits=NEVER_AHEAD, consumer="second")
    at = second.initialOffset()
    add(client, 2, first=10)
    end = second.latestOffset(at, ALL)
    assert read(second, at, end) == [10, 11]
    again = first_again(server, **options)
    assert read(again, logged.start, logged.end) == list(range(10))
    again.commit(logged.end)
    assert again.latestOffset(logged.end, ALL) is not None
    assert pending_count(client) == 2, "those of the second query"
