"""A pattern whose streams come and go: missing ones are forgotten, also on the server, but no entry that waits."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from types import FunctionType, MethodType, ModuleType
from typing import Any

import pytest
import redis

from spark_streams.connector.keys import retry_stream, returned_stream
from spark_streams.connector.source.group.streams import forget
from spark_streams.connector.source.group_client import GroupClient, Membership
from spark_streams.connector.source.stream_reader import StreamReader
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Connection
from tools.driving import ALL, LOOK_EACH_TIME, add, reader, rows
from tools.sending import at_each_point, before_sending
from tools.servers.server import Server
from tools.waiting import until

OPTIONS = {"streamsPattern": "s:*", "failOnDataLoss": "false"}
RETRIES = {"mode": "DEADLETTER", "deadLetterStream": "dead", "retryDelay": "1ms"}
HURRY = replace(LOOK_EACH_TIME, lag_check=0.0)
MEMBER = Membership("g", "spark")


class Query:
    """A query that goes batch by batch. found: column n of all rows."""

    def __init__(self, server: Server, **options: str) -> None:
        self.reader: StreamReader = reader(server, limits=HURRY, **OPTIONS, **options)
        self.at: dict[str, Any] = self.reader.initialOffset()
        self.found: list[int] = []

    def trigger(self, times: int = 1) -> None:
        for _ in range(times):
            time.sleep(0.002)
            end = self.reader.latestOffset(self.at, ALL)
            if end != self.at:
                self.reader.commit(self.at)
                self.found += [row["n"] for row in rows(self.reader, self.at, end)]
                self.at = end


def keys_of(client: redis.Redis, stream: str) -> list[str]:
    """Keys beside a stream. The next renewal of the leases removes those."""
    keys = client.keys(f"rstream:*{{{stream}}}*")
    return sorted(key for key in keys if not key.startswith("rstream:lease:"))


def holders_of(root: object, part: str) -> set[str]:
    """Return the attributes and keys, as paths, under which an object holds texts that contain `part`."""
    found: set[str] = set()
    seen: set[int] = set()
    todo: list[tuple[str, object]] = [("", root)]
    while todo:
        path, one = todo.pop()
        if isinstance(one, str | bytes):
            text = one.decode("utf-8", "replace") if isinstance(one, bytes) else one
            if part in text:
                found.add(path)
            continue
        if id(one) in seen or isinstance(one, type | ModuleType | FunctionType):
            continue
        seen.add(id(one))
        if isinstance(one, Mapping):
            todo += [(f"{path}{{}}", inner) for pair in list(one.items()) for inner in pair]
        elif isinstance(one, list | tuple | set | frozenset | deque):
            todo += [(f"{path}[]", inner) for inner in one]
        elif isinstance(one, MethodType):
            todo.append((path, one.__self__))
        else:
            names = [*getattr(one, "__dict__", ()), *getattr(one, "__slots__", ())]
            todo += [(f"{path}.{name}", getattr(one, name, None)) for name in names]
    return found


WAYS: tuple[dict[str, str], ...] = (
    {},
    {"noAck": "true"},
    {"noAck": "true", "onCommit": "delete"},
    {"claimIdle": "1h", "maxDeliveries": "3", "deadLetterStream": "dead"},
    RETRIES,
)
ENDS = ("read to its end", "deleted unread", "beside another consumer")


@pytest.mark.parametrize(
    ("how", "options"),
    [  # noAck needs a group of its own
        pytest.param(how, options, id=f"{how}-{','.join(options) or 'default'}")
        for how in ENDS
        for options in WAYS
        if how != "beside another consumer" or "noAck" not in options
    ],
)
@pytest.mark.parametrize("restarted", [False, True], ids=["first run", "restarted"])
def test_a_query_keeps_nothing_of_the_streams_that_have_come_and_gone(
    server: Server, client: redis.Redis, how: str, restarted: bool, options: dict[str, str]
) -> None:
    """Otherwise its memory, and the work of each trigger, grow with each stream ever seen."""
    add(client, 1, "s:stays")
    query = Query(server, **options)
    query.trigger(3)
    if restarted:
        checkpoint, query = query.at, Query(server, **options)
        query.at = checkpoint
        add(client, 1, "s:stays")
    for n in range(6):
        stream = f"s:gone{n}x"
        add(client, 3, stream)
        client.xgroup_create(stream, "other", "0")
        if how == "beside another consumer":
            client.xgroup_create(stream, "g", "0")
            client.xgroup_createconsumer(stream, "g", "bob")
        query.trigger(2)
        if how == "deleted unread":
            add(client, 2, stream)
        client.delete(stream)
        add(client, 1, "s:stays")
        query.trigger(3)
    for _ in range(3):
        add(client, 1, "s:stays")
        query.trigger(2)
    query.reader.batches.worker.wait()
    assert query.found
    holders = holders_of(query.reader.batches, "gone")
    # The numbers of lost entries are per stream; leases leave with their next renewal.
    assert {
        path for path in holders if not path.endswith(("losses.counts{}", "._counters._entries{}{}", "._leaving[]"))
    } == set()


@pytest.mark.parametrize("bad", [False, True])
@pytest.mark.parametrize("options", [{}, RETRIES])
def test_nothing_stays_of_a_missing_stream(
    server: Server, client: redis.Redis, options: dict[str, str], bad: bool
) -> None:
    add(client, 1, "s:stays")
    query = Query(server, **options)
    query.trigger(3)
    for n in range(5):
        add(client, 3, f"s:{n}")
        if bad and options:
            client.xadd(f"s:{n}", {"n": "bad"})
        query.trigger(5)
        client.delete(f"s:{n}")
        query.trigger(4)
        assert keys_of(client, f"s:{n}") == []
    assert query.at["streams"].keys() == {"s:stays"}
    assert len(query.found) == 16
    assert not query.reader.reportLatestOffset().get("lost")
    assert client.xlen("dead") == (5 if bad and options else 0)
    with before_sending(b"EXISTS", act=lambda *_: None) as asked:
        query.trigger()
    assert sum(request.count(b"s:stays") for request in asked) > 0 or not options
    assert not any(b"s:%d" % n in request for request in asked for n in range(5))


@pytest.mark.parametrize("options", [{}, {"noAck": "true"}])
def test_a_stream_that_vanishes_before_the_first_offset_is_forgotten(
    server: Server, client: redis.Redis, options: dict[str, str]
) -> None:
    """Spark asks for the first position again, as long as it has logged no offset."""
    add(client, 3, "s:0")
    query = Query(server, startingOffsets="latest", **options)
    query.trigger()
    with before_sending(b"XINFO", b"CONSUMERS", act=lambda *_: client.delete("s:0"), times=1):
        query.at = query.reader.initialOffset()
    assert query.at["streams"] == {}
    query.trigger(2)
    add(client, 2, "s:1")
    query.trigger(2)
    assert query.found == [0, 1]
    assert not query.reader.reportLatestOffset().get("lost")


def test_an_entry_that_waits_for_a_retry_outlives_its_stream(server: Server, client: redis.Redis) -> None:
    add(client, 1, "s:stays")
    query = Query(server, **{**RETRIES, "retryDelay": "1500ms"})
    query.trigger()
    client.xadd("s:1", {"n": "bad"})
    query.trigger(3)
    client.delete("s:1")
    query.trigger(3)
    assert client.xlen(retry_stream("s:1", "g", 1)) == 1
    assert not client.exists("dead")

    def is_dead() -> bool:
        query.trigger()
        return bool(client.xlen("dead"))

    until(is_dead, "the entry is not retried")
    query.trigger(3)
    assert client.xlen("dead") == 1
    assert keys_of(client, "s:1") == []
    assert not query.reader.reportLatestOffset().get("lost")


def test_returned_entries_begin_anew_when_their_stream_was_missing(server: Server, client: redis.Redis) -> None:
    """A server that was restored, say. A mark of what was read before would say that the checkpoint is an older one."""
    add(client, 1, "s:1")
    query = Query(server, **RETRIES)
    query.trigger()
    client.xadd("s:1", {"n": "bad"})
    query.trigger(5)
    back = returned_stream("s:1", "g")
    client.delete(back)
    query.trigger(3)
    assert back not in query.at["streams"]
    query.reader.stop()
    client.xadd(back, {"n": "5"})
    query.reader = reader(server, limits=HURRY, **{**OPTIONS, **RETRIES, "failOnDataLoss": "true"})
    query.trigger(3)
    assert query.found == [0, 5]


def test_a_returned_entry_that_is_not_acknowledged_keeps_its_stream(server: Server, client: redis.Redis) -> None:
    """Another query of the group is reading it."""
    add(client, 1, "s:stays")
    query = Query(server, **RETRIES)
    query.trigger()
    client.xadd("s:1", {"n": "bad"})
    query.trigger(5)
    back = returned_stream("s:1", "g")
    client.xadd(back, {"n": "5"})
    client.xreadgroup("g", "bob", {back: ">"})
    client.delete("s:1")
    query.trigger(4)
    assert client.xpending(back, "g")["pending"] == 1
    assert client.xlen(back) == 1
    client.xack(back, "g", client.xrange(back)[0][0])
    client.xtrim(back, maxlen=0, approximate=False)
    query.trigger(4)
    assert keys_of(client, "s:1") == []
    assert not query.reader.reportLatestOffset().get("lost")


def test_a_returned_entry_that_comes_while_its_stream_is_forgotten_is_read(server: Server, client: redis.Redis) -> None:
    """Another query of the group has returned it. The checkpoint no longer names the stream of returned entries."""
    add(client, 1, "s:stays")
    query = Query(server, **RETRIES)
    query.trigger()
    client.xadd("s:1", {"n": "bad"})
    query.trigger(5)
    back = returned_stream("s:1", "g")
    client.delete("s:1")
    for _ in range(10):
        query.trigger()
        if back not in query.at["streams"]:
            break
    client.xadd(back, {"n": "5"})
    query.trigger(4)
    assert query.found == [0, 5]
    assert not query.reader.reportLatestOffset().get("lost")
    assert keys_of(client, "s:1") == []


def test_a_stream_that_is_created_again_is_read_from_its_first_entry(server: Server, client: redis.Redis) -> None:
    add(client, 1, "s:stays")
    query = Query(server, **RETRIES)
    query.trigger()
    for turn in range(3):
        add(client, 2, "s:1", first=10 * turn)
        client.xadd("s:1", {"n": "bad"})
        query.trigger(5)
        client.delete("s:1")
        query.trigger(turn)  # before it is forgotten, in between, and after it
    add(client, 1, "s:1", first=99)
    query.trigger(5)
    assert sorted(query.found) == [0, 0, 1, 10, 11, 20, 21, 99]
    assert client.xlen("dead") == 3
    assert not query.reader.reportLatestOffset().get("lost")


def test_killed_at_any_command_it_forgets_all_or_nothing(server: Server, client: redis.Redis) -> None:
    keys = ["rstream:delays:{s:1}:g", "rstream:committed:{s:1}:g:spark", "rstream:notes:{s:1}:g:spark"]
    waits = retry_stream("s:1", "g", 2)

    def begin() -> None:
        client.flushall()
        for key in keys:
            client.set(key, "x")

    def act() -> None:
        with Connection(Address.parse(server.url)) as connection:
            assert client.exists(*keys) in (0, 3)
            assert forget(GroupClient(connection, MEMBER), "s:1")

    assert at_each_point(begin, act, lambda: None) > 2
    assert not client.exists(*keys)

    begin()
    with (
        Connection(Address.parse(server.url)) as connection,
        before_sending(b"MULTI", act=lambda *_: client.xadd(waits, {"n": "bad"}), times=1),
    ):
        assert not forget(GroupClient(connection, MEMBER), "s:1"), "an entry has come to wait meanwhile"
        assert not forget(GroupClient(connection, MEMBER), "s:1")
    assert client.exists(*keys) == 3


def test_readers_of_returned_entries_delay_it_only_while_their_groups_change(watched_server: Server) -> None:
    """A newer Valkey breaks the WATCH of their stream then. The next trigger forgets the stream."""
    mark, returned = "rstream:committed:{s:1}:g:spark", returned_stream("s:1", "g")
    with watched_server.client() as client, Connection(Address.parse(watched_server.url)) as connection:
        client.set(mark, "x")
        client.xgroup_create(returned, "audit", id="0", mkstream=True)
        entry = client.xadd(returned, {"n": 1})
        client.xreadgroup("audit", "one", {returned: ">"})
        client.xdel(returned, entry)
        with before_sending(b"EXEC", act=lambda *_: client.xack(returned, "audit", entry)):
            forgotten = forget(GroupClient(connection, MEMBER), "s:1")
            assert (forgotten, client.exists(mark, returned)) in ((True, 0), (False, 2))
            assert forgotten or forget(GroupClient(connection, MEMBER), "s:1")
        assert client.exists(mark, returned) == 0
