"""The end of a set: killed at any request, its key names the shards that are left, and no other set is touched."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable

import pytest
import redis

from spark_streams.connector.deadletter.envelope import dead_letter_fields
from spark_streams.connector.keys import delays_key, read_retry_stream, retry_stream, shards_key
from spark_streams.connector.options.access_options import server_of
from spark_streams.connector.shards.names import shards_of
from spark_streams.connector.shards.shard_sets import (
    ShardSet,
    delete_shards,
    ensure_shards,
    fetch_shards_snapshots,
    retry_streams_of,
)
from spark_streams.connector.wire.connect import connect
from tools.sending import KilledError, dying_at
from tools.servers.server import Server
from tools.waiting import until

KEY = shards_key("orders").decode()
NAMES = shards_of("orders", 3)


def ensured(server: Server) -> None:
    with connect(server_of({"url": server.url}, "server")) as one:
        ensure_shards(one, "orders", 3, "key")


def made(server: Server, client: redis.Redis) -> None:
    """Three shards, entries that wait in two of them, and another set of the same name."""
    client.flushall()
    ensured(server)
    for name in NAMES[:2]:
        letter = dead_letter_fields([b"n", b"1"], {"stream": name, "id": "5-5", "deliveries": "1"})
        client.execute_command("XADD", retry_stream(name, "g", 1), "*", *letter)
        client.set(delays_key(name, "g"), "1000")


def is_killed(client: redis.Redis, turn: int, executed: bool, act: Callable[[], object]) -> bool:
    """Whether `act` was killed at its request number `turn`. The server has carried out all that it has sent."""
    before, died = len(client.client_list()), False
    try:
        with dying_at(turn, executed):
            act()
    except KilledError:
        died = True
    gc.collect(1)  # a connection that was being opened is only known to its error
    until(lambda: len(client.client_list()) <= before, "a connection is still there", interval=0.001)
    return died


def deleted(server: Server, count: int = 3) -> None:
    with connect(server_of({"url": server.url}, "server")) as one:
        shard_set = ShardSet("orders", count, is_created=True)
        retries = retry_streams_of(one, shard_set)
        delete_shards(one, fetch_shards_snapshots(one, ["orders"])["orders"], shard_set, retries.items())


@pytest.mark.parametrize("executed", [False, True])
def test_a_deletion_that_is_killed_leaves_nothing_that_its_key_does_not_name(
    server: Server, client: redis.Redis, executed: bool
) -> None:
    """And the same deletion, once more, ends it."""
    for turn in itertools.count(1):
        made(server, client)
        if is_killed(client, turn, executed, lambda: deleted(server)):
            left = client.keys()
            assert left == [] or KEY in left, (turn, left)
            deleted(server)
            assert client.keys() == []
            continue
        assert client.keys() == []
        break
    assert turn > 6  # three shards, two retry streams with their delays, and the key


def test_a_set_of_another_number_keeps_its_key(server: Server, client: redis.Redis) -> None:
    made(server, client)
    for name in shards_of("orders", 2):
        client.xadd(name, {"n": 1})
    deleted(server, 2)
    assert client.exists(*shards_of("orders", 2)) == 0
    assert client.exists(KEY, *NAMES) == 4
    assert all(client.exists(retry_stream(name, "g", 1), delays_key(name, "g")) == 2 for name in NAMES[:2])
    with connect(server_of({"url": server.url}, "server")) as one:
        assert {stream.stream for stream in retry_streams_of(one, ShardSet("orders", 3)).values()} == {*NAMES[:2]}
    assert read_retry_stream(retry_stream(NAMES[0], "g", 1)) is not None


@pytest.mark.parametrize("executed", [False, True])
def test_a_set_that_was_not_made_to_its_end_says_so(server: Server, client: redis.Redis, executed: bool) -> None:
    """Killed at each request: a missing shard is new unless the key says that all were made. Then nothing is lost."""
    for turn in itertools.count(1):
        client.flushall()
        died = is_killed(client, turn, executed, lambda: ensured(server))
        with connect(server_of({"url": server.url}, "server")) as one:
            snapshot = fetch_shards_snapshots(one, ["orders"])["orders"]
            assert snapshot.lost == (), turn
            assert snapshot.is_complete is (client.hget(KEY, "made") is not None)
            assert ensure_shards(one, "orders", 3, "key").is_created
            assert fetch_shards_snapshots(one, ["orders"])["orders"].is_complete
        assert client.exists(KEY, *NAMES) == 4
        assert not any(client.xinfo_groups(name) for name in NAMES)  # the one that made it exists for a moment
        if not died:
            break
    assert turn > 7


@pytest.mark.parametrize("lost", [[0], [2], [0, 1], [0, 1, 2]])
def test_a_set_is_not_complete_if_one_of_its_shards_is_lost(
    server: Server, client: redis.Redis, lost: list[int]
) -> None:
    made(server, client)
    client.delete(*[NAMES[number] for number in lost])
    with connect(server_of({"url": server.url}, "server")) as one:
        snapshot = fetch_shards_snapshots(one, ["orders"])["orders"]
    assert snapshot.lost == tuple(NAMES[number] for number in lost)
    assert not snapshot.is_complete
