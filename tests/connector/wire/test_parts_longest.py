"""What is heard of the requests that a process sends: tests/longest_request.py."""

from __future__ import annotations

from unittest import mock

from spark_streams.connector.wire.connection import Connection, pack
from spark_streams.connector.wire.parts import MOST_ARGUMENTS
from tests.longest_request import Requests


def command(name: str, arguments: int) -> bytes:
    return pack(name, *range(arguments - 1))


def test_a_long_command_is_heard_wherever_it_stands() -> None:
    for before in (b"", command("PING", 1), command("XADD", 5_000)):
        requests = Requests()
        requests.hear(memoryview(before + command("XACK", MOST_ARGUMENTS) + command("SREM", 200)))
        assert (requests.longest, requests.taken()) == ((MOST_ARGUMENTS, "XACK"), [])
        requests.hear(before + command("XACK", MOST_ARGUMENTS + 1))
        assert requests.taken() == [(MOST_ARGUMENTS + 1, "XACK")]


def test_an_entry_of_any_length_is_one_request() -> None:
    requests = Requests()
    requests.hear(command("XADD", 20_000) + pack("SET", "k", "*9999\r\nXACK"))
    assert (requests.longest, requests.line(), requests.taken()) == ((0, ""), "", [])


def test_every_connection_is_heard_and_the_product_splits(connection: Connection) -> None:
    requests = Requests()
    with requests.hearing(), mock.patch.object(Requests, "hear", _once(requests)):
        connection.send(command("DEL", 4_000))
        assert connection.replies(1) == [0]
        assert requests.taken() == [(4_000, "DEL")]
        assert requests.line() == "longest request: 4,000 arguments (DEL)"
        connection.execute("DEL", *map(str, range(4_000)))
        assert requests.taken() == []


def _once(requests: Requests) -> object:
    """What these tests send is no command of the product: the record of the run does not hear it."""
    hear = Requests.hear
    return lambda one, data: hear(one, data) if one is requests else None
