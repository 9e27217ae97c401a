"""The relay passes bytes on, breaks a connection at a byte, and closes all of them."""

from __future__ import annotations

import contextlib
import socket

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from spark_streams.operations.verify.relay import DOWN, UP, Relay
from tools.servers.server import Server


def client_of(relay: Relay) -> redis.Redis:
    return redis.Redis(port=relay.port, retry=Retry(NoBackoff(), 0), protocol=2)


@pytest.mark.parametrize("direction", [UP, DOWN])
def test_a_connection_breaks_within_a_request_or_a_reply(server: Server, direction: str) -> None:
    with Relay(server.url) as relay, client_of(relay) as client, server.client() as direct:
        client.set("k", "before")
        relay.break_at(direction, 3)
        with pytest.raises(redis.ConnectionError):
            client.set("k", "after")
        assert relay.cut_so_far == 1
        assert direct.get("k") == (b"before" if direction == UP else b"after")
        assert client.set("k", "again")  # over another connection


def test_all_connections_break(server: Server) -> None:
    with Relay(server.url) as relay, socket.create_connection(("127.0.0.1", relay.port)) as connected:
        connected.sendall(b"PING\r\n")
        assert connected.recv(7) == b"+PONG\r\n"
        relay.cut_all()
        with contextlib.suppress(ConnectionResetError):
            assert connected.recv(1) == b""
        with client_of(relay) as client:
            assert client.ping()
