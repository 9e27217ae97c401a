"""Entries that another client hands to the query: read once, or refused by name, never acknowledged unread."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from spark_streams.connector.errors import GroupSharedError, StreamStateError
from spark_streams.connector.source.stream_reader import StreamReader
from spark_streams.connector.spark.data_source import ReadMaxRows
from tests.remedies import carry_out
from tools.driving import (
    ALL,
    NEVER_AHEAD,
    add,
    another_reader,
    begin,
    drain,
    others_read_first,
    pending_count,
    read,
    reader,
    stop_all,
)
from tools.servers.server import Server

NO_ACK = {"noAck": "true"}
TEN = ReadMaxRows(10)
REFUSED = r"stream 's': 5 entries from \S+ to \S+ are pending for consumer 'spark' of group 'g', and no batch has read"


def made_pending(client: redis.Redis, ids: list[str], force: bool = False) -> None:
    """Hand entries to the query; force: entries that nobody holds."""
    client.xclaim("s", "g", "spark", 0, ids, force=force)


def run_without_a_pending_list(server: Server, client: redis.Redis) -> tuple[StreamReader, dict[str, Any], list[str]]:
    """Five entries were read by a consumer that has left; a noAck query has read ten of the others. The reader, its
    checkpoint, the ids of the five."""
    ids = add(client, 40)
    client.xgroup_create("s", "g", "0")
    client.xreadgroup("g", "other", {"s": ">"}, count=5)
    client.xgroup_delconsumer("s", "g", "other")  # nobody has acknowledged these five
    one = reader(server, limits=NEVER_AHEAD, **NO_ACK)
    end = one.latestOffset(at := one.initialOffset(), TEN)
    assert read(one, at, end) == list(range(5, 15))
    assert one.latestOffset(end, ReadMaxRows(0)) == end  # committed
    return one, end, ids[:5]


@pytest.mark.parametrize("when", ["running", "down"])
def test_a_query_with_no_ack_refuses_them_and_a_run_without_it_reads_them(
    server: Server, client: redis.Redis, when: str
) -> None:
    """The remedy is followed as the message says it; then the query goes on with noAck."""
    one, at, ids = run_without_a_pending_list(server, client)
    if when == "down":
        stop_all()
    made_pending(client, ids, force=True)
    for _ in range(2):
        with pytest.raises(StreamStateError, match=REFUSED):
            (one if when == "running" else reader(server, limits=NEVER_AHEAD, **NO_ACK)).latestOffset(at, TEN)
        assert pending_count(client) == 5
    again = reader(server, limits=NEVER_AHEAD)
    end = again.latestOffset(at, TEN)
    assert sorted(read(again, at, end)) == [0, 1, 2, 3, 4, *range(15, 20)]
    assert again.latestOffset(end, ReadMaxRows(0)) == end
    assert pending_count(client) == 0
    last = reader(server, limits=NEVER_AHEAD, **NO_ACK)
    assert drain(last, None, end) == [list(range(20, 40))]


def test_what_the_query_had_reserved_when_it_was_killed_is_read_with_them(server: Server, client: redis.Redis) -> None:
    """A noAck run dies with entries in hand that no checkpoint knows; the remedy sets the group back all the same."""
    one, at, ids = run_without_a_pending_list(server, client)
    one.latestOffset(at, TEN)
    stop_all()
    made_pending(client, ids, force=True)
    found = [n for batch in drain(reader(server, limits=NEVER_AHEAD), None, at) for n in batch]
    assert sorted(found) == [*range(5), *range(15, 40)]
    assert pending_count(client) == 0


def test_entries_that_are_acknowledged_as_the_message_says_are_not_read(server: Server, client: redis.Redis) -> None:
    one, at, ids = run_without_a_pending_list(server, client)
    made_pending(client, ids, force=True)
    with pytest.raises(StreamStateError, match=REFUSED) as refused:
        one.latestOffset(at, TEN)
    stop_all()
    carry_out(server, str(refused.value))
    assert drain(reader(server, limits=NEVER_AHEAD, **NO_ACK), None, at) == [list(range(15, 40))]


@pytest.mark.parametrize("cause", ["handed over", "died before its first checkpoint"])
def test_without_a_checkpoint_nothing_is_read_twice_and_nothing_is_passed_over(
    server: Server, client: redis.Redis, cause: str
) -> None:
    """The group stands far above its oldest pending entry; what lies between was acknowledged."""
    ids = add(client, 30)
    first = reader(server, limits=NEVER_AHEAD)
    end = first.latestOffset(at := first.initialOffset(), TEN)
    left = list(range(10))
    if cause == "handed over":
        first.latestOffset(end, ReadMaxRows(0))
        made_pending(client, ids[:5], force=True)
        left = left[:5]
    if cause == "handed over":
        with pytest.raises(StreamStateError, match=REFUSED):
            drain(reader(server, limits=NEVER_AHEAD, **NO_ACK))
    assert pending_count(client) == len(left)
    found = drain(reader(server, limits=NEVER_AHEAD), None)
    assert sorted(n for batch in found for n in batch) == [*left, *range(10, 30)]
    assert (pending_count(client), at["token"]) == (0, "")


def test_without_a_checkpoint_what_a_killed_run_had_reserved_is_read_without_a_pending_list(
    server: Server, client: redis.Redis
) -> None:
    """Its begin is marked, so nothing above it was acknowledged."""
    add(client, 30)
    killed = reader(server, limits=NEVER_AHEAD)
    killed.latestOffset(killed.initialOffset(), TEN)
    stop_all()
    assert pending_count(client) == 10
    assert drain(reader(server, limits=NEVER_AHEAD, **NO_ACK)) == [list(range(30))]
    assert pending_count(client) == 0


def test_what_a_run_with_a_pending_list_has_committed_and_not_acknowledged_is_no_hindrance(
    server: Server, client: redis.Redis
) -> None:
    add(client, 30)
    one = reader(server, limits=NEVER_AHEAD)
    end = one.latestOffset(at := one.initialOffset(), TEN)
    assert read(one, at, end) == list(range(10))
    assert pending_count(client) == 10  # killed here: in the commit log, and not acknowledged
    assert drain(reader(server, limits=NEVER_AHEAD, **NO_ACK), None, end) == [list(range(10, 30))]
    assert pending_count(client) == 0


def test_a_logged_batch_of_a_shared_group_is_read_again_from_the_pending_list_by_a_run_with_no_ack(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another consumer has entries in its range: they are not the query's."""
    add(client, 20)
    one = reader(server, limits=NEVER_AHEAD)
    at = one.initialOffset()
    with others_read_first(monkeypatch, client, 3):
        end = one.latestOffset(at, TEN)
    assert read(reader(server, limits=NEVER_AHEAD, **NO_ACK), at, end) == list(range(3, 13))


@pytest.mark.parametrize("options", [{}], ids=str)
def test_a_query_that_shares_its_group_reads_them(server: Server, client: redis.Redis, options: dict[str, str]) -> None:
    ids = add(client, 30)
    one = reader(server, limits=NEVER_AHEAD, **options)
    at = begin(one)
    client.xreadgroup("g", "bob", {"s": ">"}, count=5)
    end = one.latestOffset(at, TEN)
    found = read(one, at, end)
    made_pending(client, ids[:3])
    found += [n for batch in drain(one, None, end) for n in batch]
    assert sorted(found) == [0, 1, 2, *range(5, 30)]
    assert pending_count(client) == 2
    third = another_reader(server, consumer="third", **NO_ACK)
    at = third.initialOffset()
    with pytest.raises(GroupSharedError, match="noAck=true needs a group without other consumers, and 'bob'"):
        third.latestOffset(at, ALL)


def test_entries_handed_over_within_the_range_of_an_acknowledged_batch_are_read(
    server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The range of a batch of a shared group can hold entries of another consumer. Once the batch is acknowledged, the
    query does not acknowledge what becomes pending in this range."""
    ids = add(client, 15)
    one = reader(server, limits=NEVER_AHEAD)
    at = begin(one)
    with others_read_first(monkeypatch, client, 5):
        end = one.latestOffset(at, TEN)
    assert read(one, at, end) == list(range(5, 15))
    assert one.latestOffset(end, ALL) == end  # nothing to read: the batch is acknowledged
    assert pending_count(client) == 5
    made_pending(client, ids[1:4])
    assert drain(one, None, end) == [[1, 2, 3]]
    assert pending_count(client) == 2


def test_what_a_crash_left_and_handed_entries_leave_no_room_for_is_not_counted_as_read(
    server: Server, client: redis.Redis
) -> None:
    """Else the checkpoint says more than the query has read, and as many losses would go unnoticed."""
    ids = add(client, 30)
    one = reader(server, limits=NEVER_AHEAD)
    start = one.initialOffset()
    first = one.latestOffset(start, TEN)
    assert read(one, start, first) == list(range(10))
    one.latestOffset(first, TEN)  # it is killed before this is logged
    stop_all()
    client.xclaim("s", "g", "spark", 0, ids[:4], force=True)
    again = reader(server, limits=NEVER_AHEAD, maxBytesPerTrigger="1")
    second = again.latestOffset(first, ALL)
    assert len(read(again, first, second)) == 1
    assert second["streams"]["s"].split(" ")[2:4] == ["10", "30"]
