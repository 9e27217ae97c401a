"""What is tried again and how long."""

from __future__ import annotations

import pickle

import pytest

from spark_streams.errors import RetriesExhaustedError, ServerReplyError, ServerUnreachableError, WrongKeyTypeError
from spark_streams.wire.connection import ReplyError
from spark_streams.wire.patience import Patience
from spark_streams.wire.retry import Backoff, is_transient, wants_new_connection


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
            backoff.wait("the server", "OOM")

    with pytest.raises(RetriesExhaustedError, match="the server was tried for 3[0-9] s without success, at last: OOM"):
        for_ever()
    assert clock.pauses[0] <= 0.05
    assert 1 <= max(clock.pauses) <= 2
    assert 30 <= clock.now <= 33


def test_success_starts_anew() -> None:
    clock = Clock()
    backoff = Backoff(1, Patience(sleep=clock.sleep), lambda: clock.now)
    for _ in range(50):
        backoff.wait("x", "y")
        backoff.succeeded()
    assert max(clock.pauses) <= 0.05


def test_an_error_says_what_it_is_in_another_process_too() -> None:
    """Spark hands errors of tasks on as texts, and of some workers pickled."""
    copy = pickle.loads(pickle.dumps(ServerReplyError("SET k was answered with: OOM no room", "OOM")))
    assert (str(copy), copy.code) == ("[RSTREAM_SERVER_REPLY] SET k was answered with: OOM no room", "OOM")
    assert not is_transient(pickle.loads(pickle.dumps(ServerUnreachableError("x", passes=False))))


def test_the_log_is_told_when_waiting_begins_and_then_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    backoff = Backoff(200, Patience(sleep=clock.sleep), lambda: clock.now)
    while clock.now < 130:
        backoff.wait("reading at redis://h", "it closed the connection")
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3
    assert caplog.messages[0] == "reading at redis://h: it closed the connection; trying again for up to 200 s"
    backoff.succeeded()
    backoff.wait("reading at redis://h", "it closed the connection again")
    assert len(caplog.records) == 3, "a connection that breaks every few seconds is one line a minute, too"
