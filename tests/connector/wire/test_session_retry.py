"""What is tried again and how long."""

from __future__ import annotations

import pickle

import pytest

from spark_streams.connector.errors import (
    RetriesExhaustedError,
    ServerReplyError,
    ServerUnreachableError,
    WrongKeyTypeError,
)
from spark_streams.connector.wire.address import Patience
from spark_streams.connector.wire.connection import ReplyError
from spark_streams.connector.wire.session import Backoff, Outages, is_transient, wants_new_connection


@pytest.mark.parametrize("word", ["OOM", "BUSY", "LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN"])
def test_states_that_pass(word: str) -> None:
    assert is_transient(ReplyError(f"{word} some text"))
    assert is_transient(ServerReplyError("XADD s at redis://h was answered with: some text", word))


@pytest.mark.parametrize("text", ["ERR syntax error", "WRONGTYPE Operation", "NOPERM this user", "OOMPH", ""])
def test_answers_that_would_be_the_same_again(text: str) -> None:
    assert not is_transient(ReplyError(text))
    assert not is_transient(ServerReplyError(f"XADD s was answered with: OOM, or {text}", text.partition(" ")[0]))


def test_what_was_raised() -> None:
    assert is_transient(ServerUnreachableError("lost"))
    assert not is_transient(ServerUnreachableError("no address", passes=False))
    assert not is_transient(WrongKeyTypeError("key"))
    assert wants_new_connection(ReplyError("READONLY You can't write"))
    assert not wants_new_connection(ReplyError("OOM command"))


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def test_pauses_grow_to_a_bound_and_the_limit_ends_them() -> None:
    clock = Clock()
    backoff = Backoff(30, Patience(sleep=clock.sleep), lambda: clock.now)

    def for_ever() -> None:
        while True:
            backoff.wait("writing", "redis://h", "OOM", lost=False)

    with pytest.raises(RetriesExhaustedError, match="writing at redis://h was tried for 3[0-9] s .* at last: OOM"):
        for_ever()
    assert clock.pauses[0] <= 0.05
    assert 1 <= max(clock.pauses) <= 2
    assert 30 <= clock.now <= 33


def test_success_resets_the_backoff() -> None:
    clock = Clock()
    backoff = Backoff(1, Patience(sleep=clock.sleep), lambda: clock.now)
    for _ in range(50):
        backoff.wait("x", "redis://h", "y", lost=True)
        backoff.succeeded()
    assert max(clock.pauses) <= 0.05


def test_an_error_says_what_it_is_in_another_process_too() -> None:
    """Spark hands errors of tasks on as texts, and of some workers pickled."""
    copy = pickle.loads(pickle.dumps(ServerReplyError("SET k was answered with: OOM no room", "OOM")))
    assert (str(copy), copy.code) == ("[RSTREAM_SERVER_REPLY] SET k was answered with: OOM no room", "OOM")
    assert not is_transient(pickle.loads(pickle.dumps(ServerUnreachableError("x", passes=False))))


class Waiting:
    """Sessions of one process that wait for servers, and the clock that all of them see."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.outages = Outages(lambda: self.clock.now)

    def session(self, limit: float = 200) -> Backoff:
        return Backoff(limit, Patience(sleep=self.clock.sleep), lambda: self.clock.now, self.outages)

    def until(self, second: float, *sessions: Backoff, where: str = "redis://h", lost: bool = True) -> None:
        while self.clock.now < second:
            for number, session in enumerate(sessions):
                session.wait(f"session {number}", where, "it closed the connection", lost)


def test_an_outage_is_a_line_at_once_then_one_a_minute_and_one_when_it_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    waiting = Waiting()
    one, other = waiting.session(), waiting.session()
    waiting.until(130, one, other)
    assert caplog.messages[0] == "session 0 at redis://h: it closed the connection; trying again for up to 200 s"
    assert len(caplog.messages) == 3, "however many sessions wait"
    waiting.outages.ended("redis://h", lost_only=True)
    one.succeeded()
    other.succeeded()
    assert len(caplog.messages) == 4
    assert caplog.messages[3].startswith("the stream server at redis://h is back after 13")


def test_a_server_that_comes_and_goes_is_one_line_a_minute_too(caplog: pytest.LogCaptureFixture) -> None:
    waiting = Waiting()
    one = waiting.session()
    for second in range(5, 60, 5):
        waiting.until(second, one)
        one.succeeded()
    assert len(caplog.messages) == 2
    assert "it closed the connection; trying again" in caplog.messages[0]
    assert "the stream server at redis://h is back after" in caplog.messages[1]


def test_a_server_that_cannot_serve_is_not_available_because_a_client_was_connected(
    caplog: pytest.LogCaptureFixture,
) -> None:
    waiting = Waiting()
    one = waiting.session()
    waiting.until(10, one, lost=False)
    waiting.outages.ended("redis://h", lost_only=True)
    assert len(caplog.messages) == 1
    one.succeeded()
    assert "is back after 1" in caplog.messages[1]


def test_who_gives_up_does_not_say_that_the_server_is_back(caplog: pytest.LogCaptureFixture) -> None:
    waiting = Waiting()
    one = waiting.session(limit=5)
    with pytest.raises(RetriesExhaustedError):
        waiting.until(30, one)
    one.reset()
    one.succeeded()
    assert len(caplog.messages) == 1


def test_each_server_has_lines_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    waiting = Waiting()
    waiting.until(1, waiting.session())
    waiting.until(30, waiting.session(), where="redis://other")
    waiting.outages.ended("redis://nobody-waits-for-this-one", lost_only=True)
    assert ["redis://h" in caplog.messages[0], "redis://other" in caplog.messages[1]] == [True, True]
    assert len(caplog.messages) == 2
