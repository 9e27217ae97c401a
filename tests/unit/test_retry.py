"""What is tried again and how long; and a pipe that cannot block itself."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from spark_streams.errors import RetriesExhaustedError, ServerReplyError, ServerUnreachableError, WrongKeyTypeError
from spark_streams.wire.connection import pack
from spark_streams.wire.pipe import Pipe
from spark_streams.wire.retry import Backoff, is_passing, passes, wants_new_connection


@pytest.mark.parametrize("word", ["OOM", "BUSY", "LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN"])
def test_states_that_pass(word: str) -> None:
    assert passes(f"{word} some text")
    assert is_passing(ServerReplyError(f"XADD s at redis://h was answered with: {word} some text"))


@pytest.mark.parametrize("text", ["ERR syntax error", "WRONGTYPE Operation", "NOPERM this user", "OOMPH", ""])
def test_answers_that_would_be_the_same_again(text: str) -> None:
    assert not passes(text)
    assert not is_passing(ServerReplyError(f"XADD s was answered with: {text}"))


def test_what_was_raised() -> None:
    assert is_passing(ServerUnreachableError("lost"))
    assert not is_passing(WrongKeyTypeError("key"))
    assert wants_new_connection("READONLY You can't write")
    assert not wants_new_connection("OOM command")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def test_pauses_grow_to_a_bound_and_the_limit_ends_them() -> None:
    clock = Clock()
    backoff = Backoff(30, clock.sleep, lambda: clock.now)

    def for_ever() -> None:
        while True:
            backoff.wait("the server", "OOM")

    with pytest.raises(RetriesExhaustedError, match="the server was tried for 3[0-9] s without success, at last: OOM"):
        for_ever()
    assert clock.pauses[0] <= 0.05
    assert 1 <= max(clock.pauses) <= 2
    assert 30 <= clock.now <= 33


def test_success_starts_anew() -> None:
    clock = Clock()
    backoff = Backoff(1, clock.sleep, lambda: clock.now)
    for _ in range(50):
        backoff.wait("x", "y")
        backoff.succeeded()
    assert max(clock.pauses) <= 0.05


@pytest.fixture
def stubborn() -> Iterator[socket.socket]:
    """A server that answers every request with a hundred times its bytes, and reads no more while that is not read."""
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)

    def serve() -> None:
        while data := theirs.recv(4096):
            theirs.sendall(b"+" + b"x" * (100 * len(data)) + b"\r\n")
            if b"the end" in data:
                theirs.sendall(b"MARK")
                return

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield ours
    ours.close()
    thread.join(5)
    theirs.close()


def test_sending_takes_replies_in(stubborn: socket.socket) -> None:
    """A sender that reads nothing would wait for ever here, and so would the server."""
    done = threading.Event()

    def exchange() -> None:
        server = SimpleNamespace(mark=(b"", b"MARK"), raw_socket=stubborn, lost=lambda error: error)
        pipe = Pipe(server)  # type: ignore[arg-type]  # all that it needs of a connection
        pipe.send(pack("SET", "k", b"v" * 200_000), b"the end")
        assert len(pipe.take()) > 100 * 200_000
        done.set()

    threading.Thread(target=exchange, daemon=True).start()
    assert done.wait(20)
