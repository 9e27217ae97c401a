"""How requests are read: inline commands, malformed ones, pieces of any size, long pipelines."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_streams.engine.resp.request_parser import (
    PIPELINED,
    Request,
    RequestLimits,
    RequestParser,
    TooLongError,
    split_quoted,
    whole_commands,
)
from spark_streams.engine.store.entry_bytes import fields_wire
from tests.engine.wire import Wire, command, wire
from tools.machine_time import machine_seconds
from tools.servers.server import Server

MALFORMED = [
    (b"*x\r\n", "invalid multibulk length"),
    (b"*2147483648\r\n", "invalid multibulk length"),
    (b"*03\r\n", "invalid multibulk length"),
    (b"*1\r\n+PING\r\n", "expected '$', got '+'"),
    (b"*1\r\n$x\r\n", "invalid bulk length"),
    (b"*1\r\n$-1\r\n", "invalid bulk length"),
    (b"*1\r\n$999999999999\r\n", "invalid bulk length"),
    (b'SET "a\r\n', "unbalanced quotes in request"),
    (b"GET 'a'b\r\n", "unbalanced quotes in request"),
    (b"x" * 70000, "too big inline request"),
    (b"*" + b"1" * 70000, "too big mbulk count string"),
]


@pytest.mark.parametrize(("request_bytes", "problem"), MALFORMED, ids=[row[1] for row in MALFORMED])
def test_malformed_requests_are_refused_and_the_connection_closed(
    server: Server, request_bytes: bytes, problem: str
) -> None:
    """The commands before are answered, then comes Redis' own error line, then the end."""
    client = Wire(server)
    assert client.call("PING") == b"PONG"
    client.socket.sendall(request_bytes)
    assert client.rest() == b"-ERR Protocol error: " + problem.encode() + b"\r\n"
    client.close()


def test_inline_commands(server: Server) -> None:
    """Words on a line are a command; quotes and escapes are those of redis-cli; blank lines and `*0` are nothing."""
    with wire(server) as client:
        client.socket.sendall(b'\r\n*0\r\n*-1\r\nSET "\\x41\\n" \'it\\\'s\'\nGET "A\\n"\r\n')
        assert client.reply() == b"OK"
        assert client.reply() == b"it's"


def test_a_command_in_single_bytes(server: Server) -> None:
    """However the bytes arrive, the command is the same."""
    with wire(server) as client:
        for byte in command("ECHO", "a\r\nb*3\r\n$"):
            client.socket.sendall(bytes([byte]))
        assert client.reply() == b"a\r\nb*3\r\n$"


def test_a_long_pipeline_of_awkward_values(server: Server) -> None:
    """Values that look like protocol, empty ones and long ones come back as they were, in order."""
    values = [b"", b"\r\n", b"*3\r\n$3\r\nSET\r\n", b"$5\r\nhello\r\n", b"x" * 100_000, bytes(range(256))] * 20
    with wire(server) as client:
        client.socket.sendall(b"".join(command("XADD", "s", f"{i + 1}-0", b"f", v) for i, v in enumerate(values)))
        assert [client.reply() for _ in values] == [b"%d-0" % (i + 1) for i in range(len(values))]
        assert [entry[1][1] for entry in client.call("XRANGE", "s", "-", "+")] == values


def test_wrong_types_in_a_long_pipeline_do_no_harm(engine_server: Server) -> None:
    """Where the fast parser lets something odd through, the command is refused and the engine lives on."""
    client = Wire(engine_server)
    client.socket.sendall(command("SET", "k", "x" * PIPELINED) + b"*2\r\n$3\r\nGET\r\n:5\r\n")
    answer = client.rest()
    assert answer.startswith(b"+OK\r\n-ERR Protocol error")
    with wire(engine_server) as other:
        assert other.call("PING") == b"PONG"


@given(
    st.lists(st.lists(st.binary(max_size=40), min_size=1, max_size=6), min_size=1, max_size=12),
    st.lists(st.integers(1, 60), min_size=1, max_size=30),
    st.booleans(),
)
def test_pieces_of_any_size_give_the_same_commands(
    commands: list[list[bytes]], sizes: list[int], long_first: bool
) -> None:
    """The strict parser and the fast one find the same commands wherever the pieces are cut."""
    parser = RequestParser()
    found: list[list[bytes]] = []
    if long_first:
        first = [b"ECHO", b"x" * PIPELINED]
        found += parser.feed(command(*first))
        assert found.pop() == first
    data = b"".join(command(*one) for one in commands)
    turn = 0
    while data:
        size = sizes[turn % len(sizes)]
        turn += 1
        found += parser.feed(data[:size])
        data = data[size:]
    assert found == commands
    assert parser.failure is None


@pytest.mark.in_turn
def test_single_bytes_cost_their_number_and_not_its_square() -> None:
    """A request of a hundred thousand arguments is not read from its beginning for each byte that arrives."""
    parser = RequestParser()
    data = command(*[b"x"] * 100_000)
    begun = machine_seconds()
    found: list[list[bytes]] = []
    for at in range(len(data)):
        found += parser.feed(data[at : at + 1])
    assert [len(one) for one in found] == [100_000]
    assert machine_seconds() - begun < 10


@pytest.mark.parametrize("header", [b"*2147483647", b"%2147483647", b"~2147483647", b">2147483647", b"*999999999"])
@pytest.mark.parametrize("before", [b"", command("ECHO", "x" * PIPELINED)])
def test_a_header_makes_no_room_for_what_it_promises(header: bytes, before: bytes) -> None:
    """Neither at the beginning nor in a pipelined chunk, neither whole nor in a value."""
    for data in (before + header + b"\r\n" + command("PING") * 1000, command("ECHO", header) * 1000):
        parser = RequestParser()
        tracemalloc.start()
        parser.feed(data)
        assert tracemalloc.get_traced_memory()[1] < 20 * len(data)
        tracemalloc.stop()


def test_a_request_without_an_end_is_bounded() -> None:
    """By the bytes that it holds, and by what its arguments take in memory."""
    for start, more in ((b"*1\r\n$5000000\r\n", b"x" * 50_000), (b"*1000000\r\n", b"$0\r\n\r\n" * 10_000)):
        parser = RequestParser(RequestLimits(held=1_000_000))
        parser.feed(start)
        fed = 0
        while parser.failure is None:
            fed += len(more)
            assert parser.feed(more) == []
            while parser.unread:
                assert parser.feed(b"") == []
        assert fed < 1_100_000
        assert isinstance(parser.failure, TooLongError)
        assert parser.held < 1000


def test_fields_are_the_bytes_of_the_request() -> None:
    """The stored field section is byte for byte what a client sent."""
    pairs = [b"year", b"2013", b"", b"x" * 5000]
    assert fields_wire(pairs) == command(*pairs)


def test_quoted_words() -> None:
    """As `sdssplitargs`."""
    assert split_quoted(b' set  k "a b" \'c d\' "\\x00\\t" ') == [b"set", b"k", b"a b", b"c d", b"\x00\t"]
    assert split_quoted(b'"open') is None


def test_a_chunk_that_ends_within_an_xadd_is_read_at_once_up_to_its_last_border() -> None:
    """The id `*` is no border, and no reason to fall back to the slow road."""
    command = b"*5\r\n$4\r\nXADD\r\n$1\r\ns\r\n$1\r\n*\r\n$1\r\nf\r\n$2\r\nvv\r\n"
    for cut in range(1, len(command)):
        found: list[Request] = []
        end = whole_commands(command * 200 + command[:cut], found, RequestLimits())
        # A border whose count has not arrived is not one yet.
        assert end == (199 if cut == 1 else 200) * len(command)
        assert len(found) * len(command) == end
