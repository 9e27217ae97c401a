"""The pending lists of many streams, asked and settled together, on both servers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
import redis

from spark_streams.base.ids import MAX_ID, MIN_ID, StreamId
from spark_streams.connector.errors import GroupMissingError, ServerReplyError
from spark_streams.connector.source import pending_list
from spark_streams.connector.source.group_client import GroupClient, Membership
from spark_streams.connector.source.limits import LIMITS
from spark_streams.connector.source.offset import Range
from spark_streams.connector.source.pending_list import acknowledge, pending_ids, pending_ranges
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Connection, ReplyError
from spark_streams.connector.wire.pending_page import PendingPage, decode_pending, texts_of
from spark_streams.connector.wire.replies import milliseconds
from tools.servers.server import Server

MEMBER = Membership("g", "c")


class Counting(Connection):
    """Counts requests and round trips."""

    requests = 0
    trips = 0

    def request(self, *commands: bytes, max_bytes: int | None = None) -> None:
        self.requests += 1
        super().request(*commands, max_bytes=max_bytes)

    def receive(self, max_bytes: int | None = None) -> memoryview:
        self.trips += 1
        return super().receive(max_bytes)


@pytest.fixture
def connection(server: Server) -> Iterator[Counting]:
    with Counting(Address.parse(server.url)) as opened:
        yield opened


def deliver(client: redis.Redis, stream: str, count: int, *consumers: str) -> None:
    """Entries 1-0 … count-0, delivered to the consumers in turn."""
    pipe = client.pipeline(transaction=False)
    pipe.xgroup_create(stream, "g", id="0", mkstream=True)
    for n in range(1, count + 1):
        pipe.xadd(stream, {"n": n}, id=f"{n}-0")
    consumers = consumers or ("c",)
    if len(consumers) == 1:
        pipe.xreadgroup("g", consumers[0], {stream: ">"})
    else:
        for n in range(count):
            pipe.xreadgroup("g", consumers[n % len(consumers)], {stream: ">"}, count=1)
    pipe.execute()


def held_ids(client: redis.Redis, stream: str) -> list[str]:
    return [one["message_id"] for one in client.xpending_range(stream, "g", "-", "+", 10_000)]


@pytest.mark.in_turn
def test_a_thousand_small_streams_are_settled_in_two_round_trips(client: redis.Redis, connection: Counting) -> None:
    streams = [f"s{n}" for n in range(1000)]
    for stream in streams:
        deliver(client, stream, 3)
    ranges = [Range(stream, MIN_ID, StreamId(2, 0)) for stream in streams]
    assert len(pending_ranges(GroupClient(connection, MEMBER), ranges, 100)) == 1000
    assert connection.trips == 1
    assert acknowledge(GroupClient(connection, MEMBER), ranges) == 2000
    assert connection.trips == 3
    assert all(held_ids(client, stream) == ["3-0"] for stream in streams)


def test_a_long_pending_list_is_settled_page_by_page_up_to_its_end_and_no_further(
    client: redis.Redis, connection: Counting
) -> None:
    limits = replace(LIMITS, pending_page=70)
    deliver(client, "s", 300)
    assert acknowledge(GroupClient(connection, MEMBER, limits), [Range("s", StreamId(2, 0), StreamId(5, 0))]) == 3
    connection.trips = 0
    assert acknowledge(GroupClient(connection, MEMBER, limits), [Range("s", MIN_ID, StreamId(250, 0))]) == 247
    assert connection.trips == 5
    assert held_ids(client, "s") == [f"{n}-0" for n in range(251, 301)]
    assert acknowledge(GroupClient(connection, MEMBER, limits), [Range("s", MIN_ID, StreamId(250, 0))]) == 0


def test_a_full_page_is_decoded_after_the_next_one_is_requested(
    client: redis.Redis, connection: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliver(client, "s", 250)
    unanswered_at_decode = []

    def decode(replies: memoryview, count: int) -> list[PendingPage | ReplyError]:
        unanswered_at_decode.append(connection.requests - connection.trips)
        return decode_pending(replies, count)

    monkeypatch.setattr(pending_list, "decode_pending", decode)
    assert (
        acknowledge(GroupClient(connection, MEMBER, replace(LIMITS, pending_page=100)), [Range("s", MIN_ID, MAX_ID)])
        == 250
    )
    assert unanswered_at_decode[:3] == [1, 1, 0]


@pytest.mark.parametrize("consumer", ["c", "with blanks", "*4", "\r\n:1\r\n:1", "$1\r\nc", "é" * 200])
def test_a_long_list_of_a_consumer_with_any_name_is_settled(
    client: redis.Redis, connection: Counting, consumer: str
) -> None:
    deliver(client, "s", 250, consumer)
    member = replace(MEMBER, consumer=consumer)
    assert (
        acknowledge(GroupClient(connection, member, replace(LIMITS, pending_page=100)), [Range("s", MIN_ID, MAX_ID)])
        == 250
    )
    assert held_ids(client, "s") == []


def test_no_reply_stays_in_the_connection_if_a_page_cannot_be_decoded(
    client: redis.Redis, connection: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliver(client, "s", 250)

    def decode(replies: memoryview, count: int) -> list[PendingPage | ReplyError]:
        raise ServerReplyError("unreadable")

    monkeypatch.setattr(pending_list, "decode_pending", decode)
    with pytest.raises(ServerReplyError, match="unreadable"):
        acknowledge(GroupClient(connection, MEMBER, replace(LIMITS, pending_page=100)), [Range("s", MIN_ID, MAX_ID)])
    assert connection.execute("XLEN", "s") == 250


def test_more_streams_than_a_round_takes_are_settled_in_several(client: redis.Redis, connection: Counting) -> None:
    limits = replace(LIMITS, pending_streams=7, pending_round=20)
    lengths = {f"s{n}": n for n in range(40)}
    for stream, count in lengths.items():
        deliver(client, stream, count)
    ranges = [Range(stream, MIN_ID, MAX_ID) for stream in lengths]
    runs = pending_ranges(GroupClient(connection, MEMBER, limits), ranges, 1000)
    for stream, count in lengths.items():
        assert sum(run.count for run in runs if run.stream == stream) == count
    assert acknowledge(GroupClient(connection, MEMBER, limits), ranges) == sum(lengths.values())
    assert not any(held_ids(client, stream) for stream in lengths)


def test_pending_entries_become_runs_range_by_range(client: redis.Redis, connection: Counting) -> None:
    deliver(client, "s", 10)
    deliver(client, "t", 4, "c", "other")
    ranges = [Range("s", StreamId(1, 0), StreamId(9, 0)), Range("t", MIN_ID, MAX_ID)]
    assert pending_ranges(GroupClient(connection, MEMBER), ranges, 5) == [
        Range("s", StreamId(1, 0), StreamId(6, 0), 5),
        Range("s", StreamId(6, 0), StreamId(9, 0), 3),
        Range("t", MIN_ID, StreamId(3, 0), 2),
    ]
    assert pending_ranges(GroupClient(connection, MEMBER), [Range("s", MIN_ID, MAX_ID)], 2, {"s": 3, "t": 1}) == [
        Range("s", MIN_ID, StreamId(2, 0), 2),
        Range("s", StreamId(2, 0), StreamId(3, 0), 1),
    ]
    assert pending_ranges(GroupClient(connection, MEMBER), [Range("s", StreamId(4, 0), StreamId(4, 0))], 2) == []


def test_entries_that_were_delivered_later_are_neither_listed_nor_acknowledged(
    client: redis.Redis, connection: Counting
) -> None:
    """A page of the server's may have some of both."""
    deliver(client, "s", 10, "c")
    until = milliseconds(connection.execute("TIME"))
    time.sleep(0.005)
    client.xclaim("s", "g", "c", 0, ["2-0", "3-0", "10-0"], justid=True)
    pages = pending_ids(GroupClient(connection, MEMBER), [Range("s", MIN_ID, MAX_ID, until=until)], 4)
    ids = [entry for _, page in pages for entry in texts_of(page).to_pylist()]
    assert ids == [b"%d-0" % n for n in (1, 4, 5, 6, 7, 8, 9)]
    assert (sum(run.count for run, _ in pages), pages[0][0].until) == (7, until)
    assert acknowledge(GroupClient(connection, MEMBER), [Range("s", MIN_ID, MAX_ID, until=until)]) == 7
    assert held_ids(client, "s") == ["2-0", "3-0", "10-0"]


def test_a_missing_group_is_a_named_error(client: redis.Redis, connection: Counting) -> None:
    deliver(client, "s", 3)
    for ask in (acknowledge, lambda group, ranges: pending_ranges(group, ranges, 10)):
        with pytest.raises(GroupMissingError, match="XPENDING t g at .*: the stream or its consumer group is missing"):
            ask(GroupClient(connection, MEMBER), [Range("s", MIN_ID, MAX_ID), Range("t", MIN_ID, MAX_ID)])


def test_a_user_who_may_not_acknowledge_gets_a_named_error(redis_server: Server) -> None:
    """(The bundled engine has no ACLs.)"""
    with redis_server.client(decode_responses=True) as admin:
        admin.flushall()
        deliver(admin, "s", 3)
        admin.acl_setuser("half", enabled=True, passwords=["+pw"], keys=["*"], categories=["+@all"], commands=["-xack"])
        with (
            Connection(Address.parse(redis_server.url.replace("://", "://half:pw@"))) as connection,
            pytest.raises(ServerReplyError, match="XACK s g at .*NOPERM"),
        ):
            acknowledge(GroupClient(connection, MEMBER), [Range("s", MIN_ID, MAX_ID)])
        admin.acl_deluser("half")
