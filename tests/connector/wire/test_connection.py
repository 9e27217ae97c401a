"""The bytes on a connection: whatever is sent, and however large replies are, neither side waits for the other."""

from __future__ import annotations

import socket
import threading
import traceback
import tracemalloc
from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_streams.connector.errors import ServerReplyError, ServerUnreachableError, WrongKeyTypeError
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import (
    Argument,
    Connection,
    Known,
    PageSizer,
    Reply,
    ReplyError,
    ReplyTooLargeError,
    pack,
)
from spark_streams.connector.wire.replies import is_no_group, is_wrong_type
from spark_streams.connector.wire.session import Pipe
from spark_streams.connector.wire.sockets import Duplex, Gaps
from tools.servers.server import Server, free_port

MB = 1 << 20


@pytest.fixture
def connection(server: Server) -> Iterator[Connection]:
    """One that gives up after some seconds rather than a minute."""
    with Connection(Address.parse(f"{server.url}?socket_timeout=8")) as made:
        yield made


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
    ours.settimeout(8)
    yield ours
    ours.close()
    thread.join(5)
    theirs.close()


def test_replies_to_a_pipeline_larger_than_all_buffers_are_complete(connection: Connection) -> None:
    """40 MB of commands and as much of replies: who sends all before reading waits for ever, and so does the server."""
    values = [b"%d" % n + b"x" * 2000 for n in range(20_000)]
    assert connection.pipeline([("ECHO", value) for value in values]) == values
    assert list(connection.execute_each([("ECHO", value) for value in values])) == values
    assert connection.execute("PING") == b"PONG"


def test_the_reply_to_a_request_larger_than_all_buffers_is_complete(connection: Connection) -> None:
    value = b"x" * 5000
    connection.request(*[pack("ECHO", value)] * 8000)
    assert bytes(connection.receive()) == (b"$5000\r\n%b\r\n" % value) * 8000
    connection.request_separately([pack("ECHO", value) * 4000, pack("ECHO", "y") * 4000])
    first, second = connection.split_replies(connection.receive())
    assert (len(first), bytes(second)) == (4000 * 5009, b"$1\r\ny\r\n" * 4000)


def test_replies_that_come_while_a_request_is_sent_are_bounded(server: Server, connection: Connection) -> None:
    with pytest.raises(ReplyTooLargeError):
        connection.request(*[pack("ECHO", b"x" * 5000)] * 8000, max_bytes=MB)
    with pytest.raises(ServerUnreachableError):
        connection.execute("PING")


def test_sending_takes_replies_in(stubborn: socket.socket) -> None:
    """A sender that reads nothing would wait for ever here, and so would the server."""
    duplex = Duplex(stubborn, lambda error: ServerUnreachableError(str(error)))
    duplex.send(pack("SET", "k", b"v" * 200_000) + b"the end")
    came = bytearray()
    while not came.endswith(b"MARK"):
        came += duplex.receive()
    assert len(came) == duplex.received > 100 * 200_000


def test_marked_requests_of_any_size_may_be_under_way_together(connection: Connection) -> None:
    pipe = Pipe(connection)
    for n in range(6):
        pipe.send(pack("ECHO", b"%d" % n * MB) * 4, pipe.end_marker)
    for n in range(6):
        assert pipe.take() == (b"$1048576\r\n%b\r\n" % (b"%d" % n * MB)) * 4


def test_replies_that_are_taken_one_by_one_are_not_in_memory_together(server: Server) -> None:
    """Nor are they all under way: a server, too, must keep what its client has not read."""
    with server.client() as client:
        client.set("k", b"x" * MB)
    sent = 0
    with Connection(Address.parse(server.url)) as connection:
        send = connection.send

        def counting(data: bytes | memoryview) -> None:
            nonlocal sent
            sent += bytes(data).count(b"GET")
            send(data)

        connection.send = counting  # type: ignore[method-assign]
        tracemalloc.start()
        for number, reply in enumerate(connection.execute_each([("GET", "k")] * 300)):
            assert len(reply) == MB
            assert sent - number <= 20
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert number == 299
    assert peak < 8 * MB


def test_replies_that_are_not_taken_end_the_connection(connection: Connection) -> None:
    """Rather than answer the next question."""
    replies = connection.execute_each([("ECHO", n) for n in range(100)])
    assert [next(replies) for _ in range(100)] == [b"%d" % n for n in range(100)]
    del replies
    assert connection.execute("PING") == b"PONG"
    replies = connection.execute_each([("ECHO", n) for n in range(100)])
    assert next(replies) == b"0"
    del replies
    with pytest.raises(ServerUnreachableError):
        connection.execute("PING")


Way = Callable[..., list[Reply]]  # given a connection, commands, and the errors that are answers


def one_by_one(connection: Connection, commands: Sequence[Sequence[Argument]], *known: Known) -> list[Reply]:
    connection.send(b"".join([pack(*command) for command in commands]))
    return [connection.next_answer(command, *known) for command in commands]


WAYS: list[Way] = [Connection.execute_all, lambda *given: list(Connection.execute_each(*given)), one_by_one]


@pytest.mark.parametrize("way", WAYS, ids=["execute_all", "execute_each", "next_answer"])
def test_an_error_raises_unless_the_caller_names_it(connection: Connection, way: Way) -> None:
    """One that is named stays a value in its place."""
    connection.execute("SET", "k", "v")
    commands = [("GET", "k"), ("XLEN", "k"), ("ECHO", 7), ("GET", b"k")]
    found = way(connection, commands, is_no_group, is_wrong_type)
    assert [found[0], found[2], found[3]] == [b"v", b"7", b"v"]
    assert isinstance(found[1], ReplyError)
    assert str(found[1]).startswith("WRONGTYPE ")
    assert way(connection, []) == []
    with pytest.raises(WrongKeyTypeError, match=r"key 'k' .* \(XLEN\)"):
        way(connection, commands, is_no_group)


def test_a_mark_between_two_requests_may_be_refused(connection: Connection) -> None:
    """A server that is busy refuses ECHO, too."""
    connection._mark_request = pack("ECHO")
    connection.request_separately([pack("ECHO", "x"), pack("ECHO", "y")])
    with pytest.raises(ServerReplyError, match="ECHO at .* was answered with: ERR wrong number"):
        connection.split_replies(connection.receive())
    assert connection.execute("ECHO", "z") == b"z"


def test_a_server_that_falls_silent_is_given_up(server: Server) -> None:
    """The time is how long not a byte comes, or goes: a large reply may take longer."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as silent,
        Connection(Address.parse(server.url)) as connection,
    ):
        silent.settimeout(0.3)
        duplex = Duplex(silent, connection.lost)
        with pytest.raises(ServerUnreachableError, match=r"lost the stream server at .*: no answer for 0.3 s"):
            duplex.receive()
        with pytest.raises(ServerUnreachableError, match="no answer for 0.3 s"):
            duplex.send(b"x" * 64 * MB)
        accepted, _ = listener.accept()
        accepted.close()
        with pytest.raises(ServerUnreachableError):
            duplex.receive()


def test_an_unreachable_server_is_reported_once(server: Server) -> None:
    """redis-py's own errors, and what caused those, repeat it: they are in the message, and in no traceback."""
    with pytest.raises(ServerUnreachableError, match="Connection refused") as refused:
        Connection(Address.parse(f"redis://127.0.0.1:{free_port()}/0"))
    with pytest.raises(ServerUnreachableError, match="no stream server answers at .*missing.sock") as missing:
        Connection(Address.parse("unix:///tmp/rstream-test/missing.sock"))
    with Connection(Address.parse(server.url)) as broken:
        broken._duplex._socket.shutdown(socket.SHUT_RDWR)
        with pytest.raises(ServerUnreachableError) as lost:
            broken.execute("PING")
    for caught in (refused, missing, lost):
        shown = "".join(traceback.format_exception(caught.value))
        assert shown.count("Traceback") == 1, shown


# -- How many entries the next page is asked for -----------------------------------------------------------------------


COUNTS = st.integers(1, 100_000)


@given(COUNTS, COUNTS, st.lists(st.tuples(st.integers(0, 100_000), st.integers(0, 1 << 30)), max_size=10))
def test_a_page_has_an_entry_at_least_grows_tenfold_and_stays_below_the_largest(
    first: int, largest: int, pages: list[tuple[int, int]]
) -> None:
    sizer = PageSizer(min(first, largest), largest, 4 << 20)
    for entries, received in pages:
        before = sizer.size
        sizer.learn(entries, received)
        assert 1 <= sizer.size <= min(largest, 10 * before)


def test_entries_of_the_same_size_fill_a_page_and_do_not_exceed_it() -> None:
    sizer = PageSizer(10, 1_000_000, 1000)
    for _ in range(5):
        sizer.learn(sizer.size, 7 * sizer.size)
    assert sizer.size == 1000 // 7


def test_a_page_without_entries_tells_nothing() -> None:
    sizer = PageSizer(10, 100, 1000)
    sizer.learn(0, 500)
    assert sizer.size == 10


def test_a_reply_that_was_too_large_is_asked_for_in_far_smaller_pages() -> None:
    sizer = PageSizer(5_000, 10_000, 1000)
    sizer.too_large()
    assert sizer.size == 50
    sizer.too_large(700)
    assert sizer.size == 7
    sizer.too_large()
    assert sizer.size == 1


@given(
    st.lists(st.tuples(st.binary(max_size=6), st.binary(max_size=6)), max_size=5),
    st.lists(st.integers(1, 9), max_size=9),
)
def test_what_arrives_between_two_marks_is_dropped_however_it_arrives(
    pairs: list[tuple[bytes, bytes]], sizes: list[int]
) -> None:
    mark = b"$3\r\nabc\r\n"
    pairs = [(kept.replace(b"\n", b""), dropped.replace(b"\n", b"")) for kept, dropped in pairs]
    arriving = b"".join([kept + b"\r\n" + mark + dropped + b"\r\n" + mark for kept, dropped in pairs]) + b":1\r\n"
    gaps, found, begin = Gaps(mark), b"", 0
    for size in [*sizes, len(arriving)]:
        found += gaps.around(memoryview(arriving[begin : begin + size]))
        begin += size
    assert found == b"".join([kept + b"\r\n" for kept, _ in pairs]) + b":1\r\n"
