"""What happens just before the product sends a certain request: a fault at a command, on any of its connections."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from unittest import mock

from spark_streams.wire.connection import Connection, pack

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
