"""The relay passes bytes on, breaks a connection at a byte, and closes all of them."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from spark_streams.engine import LocalEngine
from spark_streams.operations.verify.relay import DOWN, EXEC, UP, Relay
from tools.servers.server import Server


def client_of(relay: Relay) -> redis.Redis:
    retry = Retry(NoBackoff(), 0)
    if relay.path is not None:
        return redis.Redis(unix_socket_path=str(relay.path), retry=retry, protocol=2)
    return redis.Redis(port=relay.port, retry=retry, protocol=2)


def connection_to(relay: Relay) -> socket.socket:
    if relay.path is None:
        return socket.create_connection(("127.0.0.1", relay.port))
    connected = socket.socket(socket.AF_UNIX)
    connected.connect(str(relay.path))
    return connected


@pytest.mark.parametrize("direction", [UP, DOWN])
def test_a_connection_breaks_within_a_request_or_a_reply(server: Server, direction: str, tmp_path: Path) -> None:
    with Relay(server.url, tmp_path) as relay, client_of(relay) as client, server.client() as direct:
        client.set("k", "before")
        relay.break_at(direction, 3)
        with pytest.raises(redis.ConnectionError):
            client.set("k", "after")
        assert relay.cut_so_far == 1
        assert direct.get("k") == (b"before" if direction == UP else b"after")
        assert client.set("k", "again")  # over another connection


def request(*words: str) -> bytes:
    return b"".join([b"*%d\r\n" % len(words), *[b"$%d\r\n%b\r\n" % (len(word), word.encode()) for word in words]])


@pytest.mark.parametrize("behind", [b"", request("PING")])
def test_a_connection_breaks_behind_an_exec_that_adds_entries_and_is_carried_out(
    server: Server, behind: bytes, tmp_path: Path
) -> None:
    """Its reply is lost, and so is what stands behind it."""
    adds = request("MULTI") + request("XADD", "s", "*", "n", "1") + request("EXEC")
    with Relay(server.url, tmp_path) as relay, server.client() as direct, connection_to(relay) as connected:
        direct.delete("s")
        relay.break_at(EXEC, 1)
        replies = connected.makefile("rb")
        for transaction in (request("MULTI") + request("EXEC"), adds, request("MULTI") + request("EXEC")):
            connected.sendall(transaction + request("ECHO", "end"))
            while replies.readline() != b"end\r\n":
                pass
        connected.sendall(adds + behind)
        with contextlib.suppress(ConnectionResetError):
            assert connected.recv(1) == b""
        assert (direct.xlen("s"), relay.cut_so_far) == (2, 1)
        with client_of(relay) as client:
            assert client.ping()


def test_all_connections_break(server: Server, tmp_path: Path) -> None:
    with Relay(server.url, tmp_path) as relay, connection_to(relay) as connected:
        connected.sendall(b"PING\r\n")
        assert connected.recv(7) == b"+PONG\r\n"
        relay.cut_all()
        with contextlib.suppress(ConnectionResetError):
            assert connected.recv(1) == b""
        with client_of(relay) as client:
            assert client.ping()


def test_the_relay_to_a_socket_is_a_socket_in_its_own_folder(tmp_path: Path) -> None:
    """A port of 127.0.0.1 would let every user of the machine reach a socket of mode 0700."""
    with LocalEngine() as engine, Relay(engine.url, tmp_path) as relay, client_of(relay) as client:
        assert (relay.path, relay.port) == (tmp_path / "relay.sock", 0)
        assert client.ping()
