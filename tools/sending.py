"""What happens just before the product sends a certain request: a fault at a command, on any of its connections."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from unittest import mock

from spark_streams.wire.connection.connection import Connection, pack

Act = Callable[[Connection, bytes], object]  # the connection, the request


class KilledError(Exception):
    """Something outside has ended the attempt."""


@contextlib.contextmanager
def before_sending(*words: bytes, act: Act, times: int | None = None) -> Iterator[list[bytes]]:
    """While the block runs, act(connection, request) comes before each request that holds all these words as arguments,
    the first `times` of them. What it raises the product meets as if `send` had; what it sends leaves at once. The
    requests that it came before are in the list."""
    packed = [b"\r\n%b\r\n" % word for word in words]
    honest = Connection.send
    met: list[bytes] = []
    acting = False

    def send(self: Connection, data: bytes | memoryview) -> None:
        nonlocal acting
        request = bytes(data)
        if not acting and len(met) != times and all(word in request for word in packed):
            acting = True
            met.append(request)
            try:
                act(self, request)
            finally:
                acting = False
        honest(self, data)

    with mock.patch.object(Connection, "send", send):
        yield met


def in_turn(*acts: Act) -> Act:
    """Another one each time."""
    left = iter(acts)

    def act(server: Connection, request: bytes) -> None:
        next(left)(server, request)

    return act


def lost(server: Connection, request: bytes) -> None:
    """The connection breaks before the request is sent."""
    raise server.lost(None)


def reply_lost(server: Connection, request: bytes) -> None:
    """The request is carried out, and the connection breaks before anybody hears of it."""
    server.send(request + pack("ECHO", "heard"))
    while server.replies(1)[0] != b"heard":
        pass
    raise server.lost(None)


def killed(server: Connection, request: bytes) -> None:
    """The process dies before the request is sent."""
    raise KilledError


@contextlib.contextmanager
def dying_at(turn: int, heard: bool) -> Iterator[list[bytes]]:
    """The process dies at its n-th request, which is carried out where it is heard. The requests so far. (Those of this
    thread: beside it one looks at the cluster's map now and then.)"""
    honest = Connection.send
    sent: list[bytes] = []
    this = threading.get_ident()

    def send(self: Connection, data: bytes | memoryview) -> None:
        if threading.get_ident() != this:
            honest(self, data)
            return
        sent.append(bytes(data))
        if len(sent) == turn:
            if heard:
                honest(self, data)
                time.sleep(0.005)  # the server may take it in before the connection ends, or behind it
            raise KilledError
        honest(self, data)

    with mock.patch.object(Connection, "send", send):
        yield sent


def at_each_point(begin: Callable[[], None], act: Callable[[], object], check: Callable[[], None]) -> int:
    """Kill `act` at each request, before and behind it; run it again, and check. How many points there were."""
    for turn in range(1, 500):
        died = False
        for heard in (False, True):
            begin()
            try:
                with dying_at(turn, heard):
                    act()
            except KilledError:
                died = True
            act()
            check()
        if not died:
            return turn - 1
    raise AssertionError("it does not end")
