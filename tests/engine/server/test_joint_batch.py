"""XADDs of many connections run as one batch, with the same entries and replies as one by one."""

from __future__ import annotations

import re
import selectors
from itertools import product

import hiredis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_streams.engine.commands import add_batch
from spark_streams.engine.core import Engine
from spark_streams.engine.journal import Journal
from spark_streams.engine.resp.xadd_batch import Shapes
from spark_streams.engine.server.client_connections import ClientConnection, Connections
from spark_streams.engine.store.stream import StoredStream
from tests.engine.wire import command
from tests.seeds import TIMES

_ID = re.compile(rb"\$1[0-9]\r\n1526919030474-[0-9]+")


class Socket:
    """A connection's other end: it gives what the client has sent, and keeps what the client receives."""

    def __init__(self) -> None:
        self.arrived = b""
        self.received = b""

    def recv(self, size: int, /) -> bytes:
        data, self.arrived = self.arrived[:size], self.arrived[size:]
        return data

    def send(self, data: bytes | memoryview, /) -> int:
        self.received += data
        return len(data)

    def fileno(self) -> int:
        return 0

    def close(self) -> None:
        self.received += b"closed"


class Selector(selectors.SelectSelector):
    """It watches nothing: the test says which sockets are ready."""

    def register(self, fileobj, events, data=None):
        return selectors.SelectorKey(fileobj, 0, events, data)

    def unregister(self, fileobj):
        return selectors.SelectorKey(fileobj, 0, 0, None)


class Side:
    """An engine and its connections. joins: whether requests of a turn may wait for each other."""

    def __init__(self, joins: bool, count: int = 10) -> None:
        self.batches: list[int] = []
        self.engine = Engine(self._add_batch, lambda: 1_526_919_030_474)
        self.engine.journal = Journal()
        self.engine.commit = lambda: self.journal.append(self.engine.journal.take())
        self.journal: list[bytes] = []
        self.joins = joins
        self.connections = Connections(self.engine, Selector())
        self.connections.joint._shapes = Shapes(min_chunk_bytes=1)  # made at once, not in a thread
        self.sockets = [Socket() for _ in range(count)]
        for number, socket in enumerate(self.sockets):
            self.connections.add(socket, f"127.0.0.1:{number}", "127.0.0.1:1")
        self.by_socket: list[ClientConnection] = list(self.connections.by_id.values())

    def _add_batch(self, engine, client, batch):
        replies = add_batch(engine, client, batch)
        if replies is not None:
            self.batches.append(len(batch.sections))
        return replies

    def turn(self, requests: dict[int, bytes]) -> None:
        """Let these connections send their requests at the same time."""
        self.connections.joint._pause = 0
        self.connections.begin_turn(len(requests) if self.joins else 0)
        for number, data in requests.items():
            self.sockets[number].arrived += data
            self.by_socket[number].handle(selectors.EVENT_READ)
        if self.connections.joint.waiting:
            self.connections.joint.run()
        self.connections.commit()

    def outcome(self) -> tuple[object, ...]:
        """Return all that does not depend on the order of different connections' requests in one turn."""
        entries = [
            (db.number, key, sorted(entry[1:] for entry in hiredis_entries(value)), value.entries_added)
            for db in self.engine.databases
            for key, value in sorted(db.values.items())
            if isinstance(value, StoredStream)
        ]
        clients = [(one.client.last_command.lower(), one.closed) for one in self.by_socket]
        replies = [_ID.sub(b"<ID>", one.received) for one in self.sockets]
        return entries, clients, self.engine.commands_processed, replies


def xadd(value: str, *names: str, key: str = "s") -> bytes:
    return command("XADD", key, "*", *(word for name in names or ("f", "g") for word in (name, value)))


def warmed(joins: bool = True) -> Side:
    side = Side(joins)
    for turn in range(3):
        side.turn({number: xadd(f"{turn}{number}") for number in range(10)})
    return side


def test_xadds_of_one_turn_run_as_one_and_each_connection_gets_its_own_reply() -> None:
    joined, plain = warmed(), warmed(joins=False)
    assert joined.batches == [10, 10]
    assert plain.batches == []
    assert joined.outcome() == plain.outcome()
    assert joined.sockets[3].received == plain.sockets[3].received
    assert [one.received.rsplit(b"-", 1)[1] for one in joined.sockets] == [b"%d\r\n" % (20 + n) for n in range(10)]
    assert b"".join(joined.journal).count(b"XADD") == b"".join(plain.journal).count(b"XADD") == 30


ODD = {
    "another command": command("PING"),
    "a part of a request": xadd("1")[:-3],
    "two requests": xadd("1") + xadd("2"),
    "a value that looks like a request": xadd(xadd("1")[:40].decode()),
    "other fields": xadd("1", "g", "f"),
    "another stream": xadd("1", key="t"),
    "an ID": command("XADD", "s", "5-*", "f", "1", "g", "2"),
    "a wrong number of arguments": command("XADD", "s", "*", "f"),
    "not canonical": xadd("1").replace(b"$1\r\nf", b"$01\r\nf"),
    "MULTI": command("MULTI"),
    "EXEC": command("EXEC"),
    "replies off": command("CLIENT", "REPLY", "OFF"),
    "another database": command("SELECT", "1"),
    "another type": command("SET", "t", "1"),
    "inline": b"XADD s * f 1 g 2\r\n",
}
FIRST = {
    "a client that is killed": command("CLIENT", "KILL", "ID", "5"),
    "a blocking read": command("XREAD", "BLOCK", "0", "STREAMS", "s", "$"),
    "a stream that is deleted": command("DEL", "s"),
    "a password": command("CONFIG", "SET", "requirepass", "p"),
    "a memory limit": command("CONFIG", "SET", "maxmemory", "1"),
}


@pytest.mark.parametrize(("odd", "place"), [*product(ODD, (0, 3, 9)), *product(FIRST, (0,))])
def test_a_request_of_another_kind_changes_nothing_for_the_others(odd: str, place: int) -> None:
    joined, plain = warmed(), warmed(joins=False)
    for side in (joined, plain):
        side.turn({number: {**ODD, **FIRST}[odd] if number == place else xadd(f"{number}" * 9) for number in range(10)})
        side.turn({number: xadd("z") for number in range(10)})
    assert joined.outcome() == plain.outcome()


kinds = st.one_of(
    st.sampled_from(["1", "22", "v" * 9, "v" * 10, "v" * 99, "v" * 100, "v" * 101]).map(xadd),
    st.sampled_from([xadd("1", "g", "f"), xadd("1", key="t"), xadd("1")[:-3], xadd("1")[:40], xadd("1")[40:]]),
)


@settings(max_examples=50 * TIMES, deadline=None)
@given(turns=st.lists(st.lists(kinds, min_size=1, max_size=10), max_size=6))
def test_each_request_is_answered_once_and_in_order_however_requests_are_cut(turns: list[list[bytes]]) -> None:
    sides = warmed(), warmed(joins=False)
    for requests in turns:
        for side in sides:
            side.turn(dict(enumerate(requests)))
    for mine, plain in zip(sides[0].sockets, sides[1].sockets, strict=True):
        assert mine.received.count(b"\r\n") == plain.received.count(b"\r\n")
    mine_closed, plain_closed = ([one.closed for one in side.by_socket] for side in sides)
    assert mine_closed == plain_closed
    streams, others = (side.engine.databases[0].values for side in sides)
    assert {key: value.length for key, value in streams.items()} == {key: value.length for key, value in others.items()}


def test_a_request_that_waits_does_not_run_if_another_client_has_closed_its_connection() -> None:
    side = warmed()
    killed = side.by_socket[2]
    requests = {number: xadd("z") for number in range(10)}
    side.turn({**requests, 5: command("CLIENT", "KILL", "ID", str(killed.client.id))})
    (stream,) = side.engine.databases[0].values.values()
    assert killed.closed
    assert stream.length == 30 + 8
    assert [one.received.count(b"\r\n") for one in side.sockets] == [8, 8, 6, 8, 8, 7, 8, 8, 8, 8]


def test_each_reply_is_the_id_of_the_entry_that_its_connection_has_added() -> None:
    side = warmed()
    side.turn({number: xadd(f"own{number}") for number in range(10)})
    assert side.batches == [10, 10, 10]
    (stream,) = side.engine.databases[0].values.values()
    for number in range(10):
        entry_id = side.sockets[number].received.split(b"\r\n")[-2]
        (piece,) = stream.slices(*[stream_id(entry_id)] * 2)[0]
        assert b"own%d\r\n" % number in piece.wire()


def hiredis_entries(stream: StoredStream) -> list[list[bytes]]:
    reader = hiredis.Reader()
    for piece in stream.slices(0, stream.last_id)[0]:
        reader.feed(piece.wire())
    return [reader.gets() for _ in range(stream.length)]


def stream_id(text: bytes) -> int:
    ms, seq = text.split(b"-")
    return (int(ms) << 64) | int(seq)


def test_after_a_turn_without_a_batch_no_request_waits_for_some_turns() -> None:
    side = warmed()
    joint = side.connections.joint
    side.turn({number: xadd("1", f"f{number}", "g") for number in range(10)})
    active_turns = []
    for _ in range(20):
        joint.begin(10)
        active_turns.append(joint.active)
    assert active_turns == [False] * 15 + [True] * 5
