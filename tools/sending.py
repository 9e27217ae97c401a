"""Inject a fault before the library sends a certain command, on any of its connections; and what requests say."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from unittest import mock

import hiredis

from spark_streams.connector.wire.connection import Connection, pack

Act = Callable[[Connection, bytes], object]  # the connection, the request


class KilledError(Exception):
    """The simulated process is killed."""


@contextlib.contextmanager
def before_sending(*words: bytes, act: Act, times: int | None = None) -> Iterator[list[bytes]]:
    """Call `act(connection, request)` before the first `times` requests that have all these words as arguments.

    An error of `act` appears to the library as an error of `send`; requests of `act` itself are sent at once. Yields
    the list of the requests for which `act` was called.
    """
    packed = [b"\r\n%b\r\n" % word for word in words]
    original = Connection.send
    requests: list[bytes] = []
    acting = False

    def send(self: Connection, data: bytes | memoryview) -> None:
        nonlocal acting
        request = bytes(data)
        if not acting and len(requests) != times and all(word in request for word in packed):
            acting = True
            requests.append(request)
            try:
                act(self, request)
            finally:
                acting = False
        original(self, data)

    with mock.patch.object(Connection, "send", send):
        yield requests


def in_turn(*acts: Act) -> Act:
    """Return an act that calls each of these once, in turn."""
    remaining = iter(acts)

    def act(server: Connection, request: bytes) -> None:
        next(remaining)(server, request)

    return act


def lost(server: Connection, request: bytes) -> None:
    """The connection breaks before the request is sent."""
    raise server.lost(None)


def reply_lost(server: Connection, request: bytes) -> None:
    """The server executes the request, and the connection breaks before the reply is read."""
    server.send(request + pack("ECHO", "executed"))
    while server.replies(1)[0] != b"executed":
        pass
    raise server.lost(None)


def killed(server: Connection, request: bytes) -> None:
    """The process dies before the request is sent."""
    raise KilledError


@contextlib.contextmanager
def dying_at(turn: int, executed: bool) -> Iterator[list[bytes]]:
    """Kill the process at request number `turn` of this thread. The server gets that request if `executed`.

    Yields the list of the requests so far. Requests of other threads, such as the refresh of a cluster's topology, do
    not count.
    """
    original = Connection.send
    sent: list[bytes] = []
    thread = threading.get_ident()

    def send(self: Connection, data: bytes | memoryview) -> None:
        if threading.get_ident() != thread:
            original(self, data)
            return
        sent.append(bytes(data))
        if len(sent) == turn:
            if executed:
                original(self, data)
                time.sleep(0.005)  # the server may read it before the connection ends, or after
            raise KilledError
        original(self, data)

    with mock.patch.object(Connection, "send", send):
        yield sent


def at_each_point(begin: Callable[[], None], act: Callable[[], object], check: Callable[[], None]) -> int:
    """Kill `act` before and after each of its requests, run it again, and check. Return the number of its requests."""
    for turn in range(1, 500):
        died = False
        for executed in (False, True):
            begin()
            try:
                with dying_at(turn, executed):
                    act()
            except KilledError:
                died = True
            act()
            check()
        if not died:
            return turn - 1
    raise AssertionError("`act` sends more than 499 requests")


def acknowledged_in(requests: bytes) -> list[tuple[str, str, list[str]]]:
    """Return (stream, group, IDs) of every XACK in a sequence of complete requests."""
    acknowledgements = []
    for words in commands_in(requests):
        if words[0] in (b"XACK", b"XACKDEL"):
            ids = words[3:] if words[0] == b"XACK" else words[words.index(b"IDS") + 2 :]
            acknowledgements.append((words[1].decode(), words[2].decode(), [entry_id.decode() for entry_id in ids]))
    return acknowledgements


def claimed_in(requests: bytes) -> list[tuple[str, list[str]]]:
    """Return (stream, IDs) of every XCLAIM in a sequence of complete requests."""
    return [
        (words[1].decode(), [word.decode() for word in words[5:] if word[:1].isdigit() and b"-" in word])
        for words in commands_in(requests)
        if words[0] == b"XCLAIM"
    ]


def commands_in(requests: bytes) -> Iterator[list[bytes]]:
    """Yield the arguments of each command in a sequence of complete requests."""
    reader = hiredis.Reader()
    reader.feed(requests)
    while (words := reader.gets()) is not False:
        if isinstance(words, list) and words:
            yield words
