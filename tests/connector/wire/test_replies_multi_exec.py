"""What became of a transaction, on both servers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_streams.connector.errors import ServerReplyError, WrongKeyTypeError
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Connection, ReplyError
from spark_streams.connector.wire.replies import (
    Outcome,
    frame_transaction,
    is_wrong_type,
    transact,
    transact_each,
    transact_in_turn,
)
from tools.servers.server import Server


@pytest.fixture
def connection(server: Server) -> Iterator[Connection]:
    with server.client() as client:
        client.set("text", "no stream")
    with Connection(Address.parse(server.url)) as made:
        yield made


def test_one_that_is_carried_out_has_a_reply_for_each_command_errors_among_them(connection: Connection) -> None:
    results = transact_each(connection, [("SET", "k", "v"), ("XLEN", "text"), ("GET", "k")])
    assert results is not None
    set_, failed, got = results
    assert (set_, got) == (b"OK", b"v")
    assert isinstance(failed, ReplyError)
    assert failed.code == "WRONGTYPE"


def test_where_no_command_may_fail_the_first_error_within_it_is_raised(connection: Connection) -> None:
    with pytest.raises(WrongKeyTypeError, match="key 'text' at .* holds another type than a stream"):
        transact(connection, [("SET", "k", "v"), ("XLEN", "text"), ("GET", "k")])
    assert transact(connection, [("GET", "k")]) == [b"v"]


def test_a_transaction_that_another_client_has_overtaken_has_no_results(connection: Connection, server: Server) -> None:
    connection.execute("WATCH", "k")
    with server.client() as client:
        client.set("k", "theirs")
    assert transact(connection, [("SET", "k", "ours")]) is None
    assert connection.execute("GET", "k") == b"theirs"


def test_many_in_turn_are_answered_each_and_an_error_that_is_not_named_raises(connection: Connection) -> None:
    many = [[("SET", "k", "v"), ("GET", "k")], [("XLEN", "text")], [("GET", "k"), ("XLEN", "text")]]
    first, alone, last = transact_in_turn(connection, many, is_wrong_type)
    assert first == [b"OK", b"v"]
    assert is_wrong_type(alone[0])
    assert (last[0], is_wrong_type(last[1])) == (b"v", True)
    with pytest.raises(WrongKeyTypeError, match="key 'text'"):
        list(transact_in_turn(connection, many))
    assert not connection.is_open, "the replies to the third one are unread"


def test_one_of_many_that_was_refused_names_its_command(connection: Connection) -> None:
    """Nothing of it is done."""
    with pytest.raises(ServerReplyError, match="NONSENSE at .* was answered with: ERR unknown command"):
        list(transact_in_turn(connection, [[("GET", "k"), ("TIME",)], [("SET", "k", "v"), ("NONSENSE",)]]))


def test_one_that_the_server_gives_up_names_the_command_that_it_refused(connection: Connection) -> None:
    commands = [("SET", "k", "v"), ("NONSENSE",)]
    outcome = Outcome.read(connection.pipeline(frame_transaction(commands)))
    assert (outcome.results, outcome.place) == (None, 1)
    assert str(outcome.refusal).startswith("ERR unknown command")
    with pytest.raises(ServerReplyError, match="NONSENSE at .* was answered with: ERR unknown command"):
        transact(connection, commands)
    assert connection.execute("EXISTS", "k") == 0
