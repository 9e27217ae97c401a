"""Clients that send as much as they can: others are served meanwhile, and memory stays bounded."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.engine.test_hostile import MB, peak
from tests.engine.wire import Wire, command, wire
from tools.machine_time import machine_seconds, share
from tools.servers.server import KINDS, Served, Server, running_redis, serving, skip_without_redis

pytestmark = pytest.mark.in_turn

SECONDS = 0.25
# Seconds of the engine's processor time until another client has the reply to its PING: 25 ms on a quiet machine. On a
# busy one the engine goes on computing until that client gets a processor.
LONGEST = 0.25

FLOODS = {
    "inline": b"a\n" * 128_000,
    "empty lines": b"\n" * 256_000,
    "empty arrays": b"*-1\r\n" * 50_000,
    "quoted": (b'"' + b"\\x41" * 16_000 + b'"\n') * 4,
    "requests": command("a") * 23_000,
    "reset": b"RESET\r\n" * 36_000,
    "arguments": b"*90000\r\n" + b"$0\r\n\r\n" * 90_000,
    "wrong password": command("AUTH", "no") * 10_000,
    "hello": command("HELLO", "3") * 10_000,
}


@contextlib.contextmanager
def flooding(server: Server, data: bytes, prelude: bytes = b"", reading: bool = True) -> Iterator[None]:
    """A client that sends `data` again and again, and connects again when it is closed."""
    ended = threading.Event()

    def flood() -> None:
        while not ended.is_set():
            with contextlib.suppress(OSError), contextlib.closing(Wire(server)) as client:
                client.socket.sendall(prelude)
                client.socket.setblocking(False)
                left = memoryview(data)
                while not ended.is_set():
                    try:
                        left = left[client.socket.send(left) :] or memoryview(data)
                    except BlockingIOError:
                        time.sleep(0.001)
                    with contextlib.suppress(BlockingIOError):
                        if reading and not client.socket.recv(1 << 20):
                            break

    flooder = threading.Thread(target=flood)
    flooder.start()
    try:
        yield
    finally:
        ended.set()
        flooder.join()


def longest_wait(server: Served, client: Wire) -> float:
    """Return the most processor time that the engine spent before it answered a PING, in machine seconds.

    The time by the clock would include the time of other processes. While this process waits for a processor, the
    engine works for the flooding client, so the processor time is also longer on a busy machine.
    """
    until, worst = time.monotonic() + SECONDS, 0.0
    while time.monotonic() < until:
        begun = server.processor_time()
        assert client.call("PING") == b"PONG"
        worst = max(worst, server.processor_time() - begun)
        time.sleep(0.002)
    return worst * share()


def locked(kind: str) -> contextlib.AbstractContextManager[Server]:
    """A server with a password."""
    if kind == "engine":
        return serving("--requirepass", "secret")
    skip_without_redis()
    return running_redis("--requirepass", "secret")


@pytest.mark.parametrize("reading", [True, False], ids=["reads", "never reads"])
@pytest.mark.parametrize("kind", FLOODS)
def test_a_client_without_the_password_delays_nobody(kind: str, reading: bool) -> None:
    """Whatever it sends; and it costs little memory."""
    with serving("--requirepass", "secret") as server, wire(server) as client:
        client.socket.settimeout(60)
        client.call("AUTH", "secret")
        before = server.resident()
        with flooding(server, FLOODS[kind], reading=reading):
            worst = longest_wait(server, client)
        assert peak(server) < before + 10 * MB
        assert worst < LONGEST


@pytest.mark.parametrize("kind", FLOODS)
def test_a_client_that_is_logged_in_delays_nobody(kind: str) -> None:
    """Its commands are run in slices, between which the others have their turn."""
    with serving("--requirepass", "secret") as server, wire(server) as client:
        client.socket.settimeout(60)
        client.call("AUTH", "secret")
        with flooding(server, FLOODS[kind], command("AUTH", "secret")):
            assert longest_wait(server, client) < LONGEST


def test_a_client_that_is_refused_again_and_again_is_closed() -> None:
    """After a hundred refusals; a client that then logs in may be refused as often as it likes."""
    with serving("--requirepass", "secret") as server:
        with wire(server) as client:
            for _ in range(99):
                assert client.raw("PING").startswith(b"-NOAUTH")
            client.socket.sendall(command("PING") * 3)
            assert client.rest() == b"-NOAUTH Authentication required.\r\n"
        assert "closing" in server.log()
        assert "100 commands refused before it logged in" in server.log()
        with wire(server) as client:
            for _ in range(99):
                client.call("PING")
            assert client.call("AUTH", "secret") == b"OK"
            for _ in range(1000):
                assert client.raw("NOSUCH").startswith(b"-ERR unknown command")


def test_unread_replies_of_a_client_without_the_password_are_few() -> None:
    """Above 16 KB it is closed: RESET is not refused, and its reply is longer than the command."""
    with serving("--requirepass", "secret") as server, wire(server) as client:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with contextlib.suppress(ConnectionError):
            for _ in range(200):
                client.socket.sendall(b"RESET\n" * 40_000)
        with pytest.raises(ConnectionError):  # noqa: PT012
            for _ in range(100):
                client.socket.sendall(b"RESET\n")
                time.sleep(0.01)
        assert "unread before it logged in" in server.log()


@pytest.mark.parametrize("kind", KINDS)
def test_all_that_follows_a_password_is_done(kind: str) -> None:
    """In one piece, with commands that are too long before AUTH; and after RESET the limits are back."""
    with locked(kind) as server, wire(server) as client:
        long = b"x" * 100_000
        client.socket.sendall(
            b"PING\r\n" * 3 + command("HELLO", "2", "AUTH", "default", "secret") + command("ECHO", long)
        )
        assert [client.reply()[:6] for _ in range(3)] == ["NOAUTH"] * 3
        assert len(client.reply()) == 14
        assert client.reply() == long
        assert client.raw("RESET") == b"+RESET\r\n"
        client.socket.sendall(b"*11\r\n")
        assert client.rest() == b"-ERR Protocol error: unauthenticated multibulk length\r\n"


def test_commands_that_wait_are_part_of_a_clients_memory() -> None:
    """As many bytes as they came in and something for each, as long as their turn has not come."""
    with serving() as server, wire(server) as client, wire(server) as flooder:
        client.call("SET", "long", "x" * 1_000_000)
        name = flooder.call("CLIENT", "ID")
        commands = command("GET", "long") * 1000
        flooder.socket.sendall(commands)
        deadline = machine_seconds() + 10
        while (read := _query_buffer(client, name)) < len(commands) // 2:
            assert machine_seconds() < deadline
        assert read < len(commands) + 1000 * 100
        for _ in range(1000):
            assert len(flooder.reply()) == 1_000_000
        assert _query_buffer(client, name) == 0


def _query_buffer(client: Wire, number: int) -> int:
    line = client.call("CLIENT", "LIST", "ID", number).decode()
    return int(line.split("qbuf=")[1].split()[0])
