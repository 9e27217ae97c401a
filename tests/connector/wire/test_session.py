"""Trying again: what a session repeats, and which connections it keeps."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_streams.connector.errors import RetriesExhaustedError, ServerUnreachableError
from spark_streams.connector.wire.address import Address, Patience
from spark_streams.connector.wire.connection import Connection, ReplyError
from spark_streams.connector.wire.session import Session
from tools.servers.server import Server, running_redis, serving, skip_without_redis


@pytest.fixture
def session(server: Server) -> Iterator[Session]:
    with Session(Address(server.url, Patience(limit=0.2, first_pause=0.001))) as made:
        yield made


def connections_of(session: Session, errors: list[Exception]) -> list[Connection]:
    """The connections on which a step was run that fails with these errors first."""
    seen: list[Connection] = []

    def step(server: Connection) -> None:
        seen.append(server)
        if errors:
            raise errors.pop(0)

    session.run(step)
    return seen


def test_a_step_is_run_again_on_a_new_connection_where_one_was_lost(session: Session) -> None:
    first, second = connections_of(session, [ServerUnreachableError("lost")])
    assert first is not second
    assert session.run(lambda server: server.execute("PING")) == b"PONG"


@pytest.mark.parametrize(("said", "is_kept"), [("OOM command not allowed", True), ("READONLY a replica", False)])
def test_behind_an_error_reply_the_connection_is_kept_unless_another_can_do_more(
    session: Session, said: str, is_kept: bool
) -> None:
    first, second = connections_of(session, [ReplyError(said)])
    assert (first is second) == is_kept


def test_an_answer_that_would_be_the_same_again_is_raised(session: Session) -> None:
    with pytest.raises(ReplyError, match="ERR syntax error"):
        connections_of(session, [ReplyError("ERR syntax error")])


def test_parts_that_succeed_do_not_reset_the_limit(session: Session) -> None:
    """Otherwise two parts, of which the second always fails, would be tried for ever."""

    def never_done() -> None:
        while True:
            session.run_part(lambda server: server.execute("PING"))
            session.wait_before_retry(ServerUnreachableError("gone"))

    with pytest.raises(RetriesExhaustedError, match="was tried for 0 s without success, at last: gone"):
        never_done()


def test_the_pipe_is_that_of_the_connection_there_is(session: Session) -> None:
    pipe = session.pipe_of("s")
    assert session.pipe_of("s") is pipe
    session.close()
    assert session.pipe_of("s") is not pipe
    assert session.pipe_of("s").server is session.get()


@pytest.mark.parametrize("kind", ["redis", "engine"])
def test_a_server_that_closes_connections_for_large_replies_is_named_with_its_limit(kind: str) -> None:
    if kind == "redis":
        skip_without_redis()
    start = running_redis if kind == "redis" else serving
    with start("--client-output-buffer-limit", "normal 300kb 0 0") as server:
        address = Address(server.url, Patience(limit=0.3, first_pause=0.001))
        with server.client() as client, Session(address) as session:
            client.set("k", bytes(40_000_000))
            message = r"it closed the connection.*closes connections with 300 KB of unread replies: raise client-out"
            with pytest.raises(RetriesExhaustedError, match=message):
                session.run(lambda connection: connection.execute_all([("GET", "k")] * 5))
            client.config_set("client-output-buffer-limit", "normal 0 0 0")
            with pytest.raises(RetriesExhaustedError) as caught:
                connections_of(session, [ServerUnreachableError("lost")] * 1_000)
            assert "output" not in caught.value.message
