"""No request has more arguments than a managed server takes, whatever a command is for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from spark_streams.base.ids import MIN_ID
from spark_streams.connector.deadletter.redrive import DeadLetterRedrive
from spark_streams.connector.deadletter.redrive_plan import RedriveOptions
from spark_streams.connector.errors import ServerReplyError, WrongKeyTypeError
from spark_streams.connector.source.limits import LIMITS
from spark_streams.connector.wire import parts
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connect import BlockedRead
from spark_streams.connector.wire.connection import Connection, pack
from spark_streams.connector.wire.parts import MOST_ARGUMENTS, Command, in_parts
from spark_streams.connector.wire.pending_page import packed_parts
from spark_streams.connector.wire.replies import is_wrong_type, transact, transact_in_turn
from tests.connector.deadletter.making import DEAD, fill
from tools.driving import ALL, add, pending_count, read, reader
from tools.servers.managed.refusing import Limits, RefusingProxy
from tools.servers.server import Server

MOST = 3_999  # of ElastiCache Serverless


@pytest.fixture
def proxy(server: Server) -> Iterator[RefusingProxy]:
    with RefusingProxy(server.url, Limits(MOST)) as proxy:
        yield proxy
    assert not proxy.refused
    assert proxy.longest[0] <= MOST_ARGUMENTS


@pytest.fixture
def connection(proxy: RefusingProxy) -> Iterator[Connection]:
    with Connection(Address.parse(proxy.url)) as opened:
        yield opened


def served(proxy: RefusingProxy, server: Server) -> Server:
    return Server(server.kind, proxy.url)


def test_the_proxy_refuses_a_longer_request_and_a_transaction_with_one(server: Server) -> None:
    with RefusingProxy(server.url, Limits(10)) as proxy, redis.Redis.from_url(proxy.url, protocol=2) as client:
        client.sadd("k", *range(8))
        with pytest.raises(redis.ResponseError, match="(?i)unknown subcommand"):
            client.sadd("k", *range(9))
        with pytest.raises(redis.ResponseError):
            client.pipeline().set("a", 1).sadd("k", *range(9)).execute()
        assert len(client.smembers("k")) == 8
        assert not client.exists("a")
        assert proxy.refused == [b"SADD", b"SADD"]
        assert proxy.longest == (11, b"SADD")


# -- one command -------------------------------------------------------------------------------------------------------

IDS = [b"%d-0" % n for n in range(1, 10_001)]
LONG: list[tuple[Any, ...]] = [
    ("XACK", "s", "g", *IDS),
    ("XDEL", "s", *IDS),
    ("XCLAIM", "s", "g", "c", 0, *IDS, "RETRYCOUNT", 7, "JUSTID"),
    ("XCLAIM", "s", "g", "c", 0, *IDS, "FORCE", "JUSTID"),
    ("XNACK", "s", "g", "FAIL", "IDS", len(IDS), *IDS),
    ("HSET", "h", *IDS, *IDS),
    ("HMGET", "h", *IDS),
    ("HDEL", "h", *IDS),
    ("SADD", "k", *IDS),
    ("SREM", "k", *IDS),
    *[(name, *IDS) for name in ("DEL", "UNLINK", "EXISTS", "WATCH")],
]


@pytest.mark.parametrize("command", LONG, ids=lambda command: command[0])
def test_the_parts_have_all_members_in_order_and_are_short(command: tuple[Any, ...]) -> None:
    found = in_parts(command)
    assert len(found) > 1
    assert max(map(len, found)) <= MOST_ARGUMENTS
    assert [word for part in found for word in part if isinstance(word, bytes)] == [
        word for word in command if isinstance(word, bytes)
    ]
    tail = tuple(command[command.index(IDS[-1], -6) + 1 :])
    assert all(part[len(part) - len(tail) :] == tail for part in found)
    if command[0] == "XNACK":
        assert all(part[5] == len(part) - 6 for part in found)
    elif command[0] == "HSET":
        assert all(len(part) % 2 == 0 for part in found)
    else:
        head = command.index(IDS[0])
        assert all(part[:head] == command[:head] for part in found)


def test_a_command_that_is_short_or_of_one_entry_stays_whole() -> None:
    short: Command = ("XACK", "s", "g", *IDS[: MOST_ARGUMENTS - 3])
    assert in_parts(short) == [short]
    entry: Command = ("XADD", "s", "*", *IDS, *IDS)
    assert in_parts(entry) == [entry]


def test_a_long_command_replies_as_the_server_would(connection: Connection) -> None:
    assert connection.execute("HSET", "h", *[word for entry in IDS for word in (entry, entry)]) == len(IDS)
    assert connection.execute("HMGET", "h", *IDS, "none") == [*IDS, None]
    changes: list[Command] = [("SADD", "k", *IDS), ("SREM", "k", *IDS[:5_000], "none"), ("SISMEMBER", "k", IDS[0])]
    assert connection.execute_all(changes) == [10_000, 5_000, 0]
    assert list(connection.execute_each([("EXISTS", *["h"] * 9_000), ("HDEL", "h", *IDS)])) == [9_000, 10_000]
    assert transact(connection, [("SADD", "m", *IDS), ("SMEMBERS", "no"), ("HMGET", "h", *IDS), ("GET", "no")]) == [
        10_000,
        [],
        [None] * 10_000,
        None,
    ]
    several: list[list[Command]] = [[("SREM", "m", *IDS)], [("SADD", "m", *IDS), ("SISMEMBER", "m", IDS[0])]]
    assert list(transact_in_turn(connection, several)) == [[10_000], [10_000, 1]]
    connection.execute("SET", "text", "a")
    with pytest.raises(WrongKeyTypeError):
        connection.execute("SADD", "text", *IDS)
    [error] = connection.execute_all([("HDEL", "text", *IDS)], is_wrong_type)
    assert is_wrong_type(error)
    with pytest.raises(ServerReplyError):
        transact(connection, [("SADD", "text", *IDS), ("XNOTHING",)])


def test_an_entry_of_many_fields_is_one_request_beside_commands_with_parts(client: redis.Redis, server: Server) -> None:
    fields = [word for entry in IDS[:3_000] for word in (entry, entry)]
    with Connection(Address.parse(server.url)) as connection:
        assert connection.execute("XADD", "s", "1-0", *fields) == b"1-0"
        assert connection.execute_all([("XADD", "s", "2-0", *fields), ("EXISTS", *["s"] * 5_000)]) == [b"2-0", 5_000]
        assert list(connection.execute_each([("XADD", "s", "3-0", *fields)])) == [b"3-0"]
    assert [len(entry[1]) for entry in client.xrange("s")] == [3_000] * 3


def test_a_watch_of_many_keys_guards_each_of_them(connection: Connection, client: redis.Redis) -> None:
    keys = IDS[:5_000]
    for changed in (keys[0], keys[-1]):
        connection.execute("WATCH", *keys)
        client.set(changed, 1)
        assert transact(connection, [("SET", "a", 1)]) is None
    connection.execute("WATCH", *keys)
    assert transact(connection, [("SET", "a", 1)]) == [b"OK"]


@given(st.lists(st.integers(1, 30), max_size=6), st.integers(8, 12))
def test_any_transaction_is_answered_as_on_one_without_a_bound(sizes: list[int], most: int) -> None:
    commands: list[Command] = [("MULTI",), *[("SADD", "k", *range(size)) for size in sizes], ("EXEC",)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "MOST_ARGUMENTS", most)
        split = [in_parts(command) for command in commands]
        queued = [part for command in split[1:-1] for part in command]
        assert all(len(part) <= most for part in queued)
        replies = [b"OK", *[b"QUEUED"] * len(queued), [len(part) - 2 for part in queued]]
        assert parts.joined(commands, split, iter(replies)) == [b"OK", *[b"QUEUED"] * len(sizes), sizes]


@given(st.integers(0, 40), st.integers(5, 12))
def test_packed_ids_are_cut_between_two_of_them(count: int, most: int) -> None:
    packed = [pack(b"%d-0" % (7**n)).split(b"\r\n", 1)[1] for n in range(count)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "MOST_ARGUMENTS", most)
        found = packed_parts(b"".join(packed), count, 3)
    assert b"".join(ids for _, ids in found) == b"".join(packed)
    assert [ids for _, ids in found] == [
        b"".join(packed[at : at + most - 3]) for at in range(0, max(count, 1), most - 3)
    ]
    assert [some for some, _ in found] == [len(packed[at : at + most - 3]) for at in range(0, max(count, 1), most - 3)]


# -- the product -------------------------------------------------------------------------------------------------------


def test_a_query_acknowledges_a_long_pending_list(server: Server, client: redis.Redis, proxy: RefusingProxy) -> None:
    """Behind a server that takes no more than 3,999 arguments, and without one."""
    add(client, 25_000)
    query = reader(served(proxy, server), limits=LIMITS)
    start = query.initialOffset()
    end = query.latestOffset(start, ALL)
    assert len(read(query, start, end)) == 25_000
    assert pending_count(client) == 25_000
    assert query.latestOffset(end, ALL) == end  # which acknowledges it
    assert pending_count(client) == 0
    assert proxy.longest == (MOST_ARGUMENTS, b"XACK")


def test_a_redrive_of_many_letters_moves_them_all(server: Server, client: redis.Redis, proxy: RefusingProxy) -> None:
    fill(server, 12_000)
    report = DeadLetterRedrive(Address.parse(proxy.url), RedriveOptions(stream=DEAD)).run()
    assert (report.moved, report.left) == (12_000, 0)
    assert client.xlen("s") == 12_000


def test_an_idle_query_waits_on_more_streams_than_one_request_names(
    server: Server, client: redis.Redis, proxy: RefusingProxy
) -> None:
    streams = [f"s{n:04}" for n in range(4_500)]
    waiting = BlockedRead(Address.parse(proxy.url))
    for arrived in (streams[0], streams[2_222], streams[-1]):
        waiting.begin(dict.fromkeys(streams, MIN_ID), 20)
        assert not waiting.is_over(0.05)
        client.xadd(arrived, {"n": 1})
        assert waiting.is_over(5)
        client.delete(arrived)
    waiting.close()
