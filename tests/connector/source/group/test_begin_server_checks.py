"""A server on which a query would lose entries in silence: one that drops keys, or does not count entries."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from spark_streams.connector.errors import UnsupportedError
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connect import evicting_policy
from spark_streams.connector.wire.connection import Connection, ReplyError
from tests.proxy import Proxy
from tools.driving import ALL, add, drain, reader
from tools.servers.server import Server

# As Redis 6.2 words it.
UNKNOWN = "ERR wrong number of arguments for 'xsetid' command"
LETTERS = {"mode": "DEADLETTER", "deadLetterStream": "dead"}


@pytest.fixture
def forgetful(redis_server: Server) -> Iterator[redis.Redis]:
    """A server with a maxmemory, and the client that sets its policy. (The bundled engine never drops a key.)"""
    with redis_server.client(decode_responses=True) as client:
        client.flushall()
        client.config_set("maxmemory", 10**9)
        yield client
        client.config_set("maxmemory", 0)
        client.config_set("maxmemory-policy", "noeviction")


def policy_of(server: Server) -> str | None:
    with Connection(Address.parse(server.url)) as connection:
        return evicting_policy(connection)


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-random", "volatile-ttl"])
def test_a_policy_is_one_that_drops_keys_and_has_a_reason_to(
    redis_server: Server, forgetful: redis.Redis, policy: str
) -> None:
    assert policy_of(redis_server) is None
    forgetful.config_set("maxmemory-policy", policy)
    assert policy_of(redis_server) == policy
    forgetful.config_set("maxmemory", 0)
    assert policy_of(redis_server) is None


def test_the_engine_drops_nothing(server: Server) -> None:
    assert policy_of(server) is None


def test_a_query_that_would_lose_entries_in_silence_is_refused(redis_server: Server, forgetful: redis.Redis) -> None:
    add(forgetful, 5)
    for policy in ("noeviction", "volatile-lru"):
        forgetful.config_set("maxmemory-policy", policy)
        assert drain(reader(redis_server, group=policy, **LETTERS)) == [list(range(5))]
    forgetful.config_set("maxmemory-policy", "allkeys-lru")
    with pytest.raises(UnsupportedError, match="maxmemory-policy allkeys-lru.*choose another mode"):
        reader(redis_server, **LETTERS).initialOffset()
    forgetful.config_set("maxmemory", 0)
    assert drain(reader(redis_server, **LETTERS)) == [list(range(5))]


def test_another_query_is_warned_once(
    redis_server: Server, forgetful: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    add(forgetful, 5)
    forgetful.config_set("maxmemory-policy", "allkeys-lru")
    with caplog.at_level(logging.WARNING):
        assert drain(reader(redis_server)) == [list(range(5))]
    assert caplog.text.count("drops any key when its memory is full") == 1


def test_a_server_that_takes_the_place_of_another_is_asked_too(redis_server: Server, forgetful: redis.Redis) -> None:
    """A replica that is promoted has settings of its own."""
    add(forgetful, 5)
    with Proxy(redis_server.url) as proxy:
        one = reader(Server("redis", proxy.url), **LETTERS)
        start = one.initialOffset()
        forgetful.config_set("maxmemory-policy", "allkeys-lfu")
        proxy.cut_all()
        with pytest.raises(UnsupportedError, match="allkeys-lfu"):
            one.latestOffset(start, ALL)


def test_a_query_from_redis_6_is_refused_by_name(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Connection.pipeline

    def old(self: Connection, commands: Any) -> Any:
        if commands and commands[0][0] == "XSETID":
            return [ReplyError(UNKNOWN)]
        return honest(self, commands)

    monkeypatch.setattr(Connection, "pipeline", old)
    with pytest.raises(
        UnsupportedError, match="Redis before 7.0 has no entries-added and entries-read.* Use Redis 7.0 or later"
    ):
        reader(server).initialOffset()


def test_redis_itself_is_read(redis_server: Server) -> None:
    """Which version this is, scripts/test --servers chooses."""
    with redis_server.client() as client:
        client.flushall()
    reader(redis_server).initialOffset()


def test_being_asked_leaves_nothing_on_the_server(server: Server) -> None:
    with server.client(decode_responses=True) as client:
        add(client, 3)
        one = reader(server, noAck="true")
        assert drain(one) == [[0, 1, 2]]
        assert not client.exists("rstream:none")
