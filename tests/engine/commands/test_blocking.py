"""Waiting for entries: who is woken, in which order, by what, and what happens meanwhile."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from types import FrameType

import pytest

from spark_streams.engine.client import Waiter, Waiters
from spark_streams.engine.commands import new_engine
from spark_streams.engine.resp.request_parser import RequestParser
from tests.engine.wire import Failed, command, wait_blocked, wire
from tools.machine_time import machine_seconds
from tools.servers.server import Server


def test_an_entry_reaches_every_reader(server: Server) -> None:
    """XREAD BLOCK: all who wait get the entry (fan-out)."""
    with ExitStack() as stack:
        client, *readers = [stack.enter_context(wire(server)) for _ in range(4)]
        for reader in readers:
            reader.send("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
        wait_blocked(client, 3)
        client.call("XADD", "s", "1-1", "a", "1")
        assert [reader.reply() for reader in readers] == [[[b"s", [[b"1-1", [b"a", b"1"]]]]]] * 3


def test_group_readers_are_served_first_come_first_served(server: Server) -> None:
    """Each entry goes to the consumer that has waited longest."""
    with ExitStack() as stack:
        client, *readers = [stack.enter_context(wire(server)) for _ in range(4)]
        client.call("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
        for number, reader in enumerate(readers):
            reader.send("XREADGROUP", "GROUP", "g", f"c{number}", "BLOCK", "0", "STREAMS", "s", ">")
            wait_blocked(client, number + 1)
        for number, reader in enumerate(readers):
            client.call("XADD", "s", f"{number + 1}-0", "a", "1")
            assert reader.reply() == [[b"s", [[b"%d-0" % (number + 1), [b"a", b"1"]]]]]


def test_time_is_up(server: Server) -> None:
    """After BLOCK milliseconds comes nil, and what was pipelined behind is answered then."""
    with wire(server) as client:
        begun = time.monotonic()
        client.send("XREAD", "BLOCK", "100", "STREAMS", "s", "$")
        client.send("PING")
        assert client.reply() is None
        assert 0.09 < time.monotonic() - begun < 30
        assert client.reply() == b"PONG"


def test_commands_behind_a_blocked_one_wait(server: Server) -> None:
    """A connection's replies keep the order of its commands."""
    with wire(server) as reader, wire(server) as client:
        reader.send("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
        reader.send("XLEN", "s")
        wait_blocked(client, 1)
        client.call("XADD", "s", "1-1", "a", "1")
        assert reader.reply() == [[b"s", [[b"1-1", [b"a", b"1"]]]]]
        assert reader.reply() == 1


def test_one_unblocked_client_unblocks_the_next(server: Server) -> None:
    """A chain of a hundred readers, each with an XADD for the next one behind its XREAD."""
    with ExitStack() as stack:
        client, *readers = [stack.enter_context(wire(server)) for _ in range(101)]
        for number, reader in enumerate(readers):
            reader.send("XREAD", "BLOCK", "0", "STREAMS", f"s{number}", "0")
            reader.send("XADD", f"s{number + 1}", "1-1", "a", "1")
        wait_blocked(client, 100)
        client.call("XADD", "s0", "1-1", "a", "1")
        for number, reader in enumerate(readers):
            assert reader.reply() == [[b"s%d" % number, [[b"1-1", [b"a", b"1"]]]]]
            assert reader.reply() == b"1-1"


def test_a_transaction_wakes_readers_once_at_its_end(server: Server) -> None:
    """A reader sees both entries of a MULTI at once."""
    with wire(server) as reader, wire(server) as client:
        reader.send("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
        wait_blocked(client, 1)
        for words in ("MULTI", "XADD s 1-1 a 1", "XADD s 2-1 a 2", "EXEC"):
            client.call(*words.split())
        assert [entry[0] for entry in reader.reply()[0][1]] == [b"1-1", b"2-1"]


def test_an_entry_deleted_at_once_wakes_nobody(engine_server: Server) -> None:
    """XADD and XDEL in one MULTI: nothing to read, so the reader waits on (7.0 sends an empty reply)."""
    with wire(engine_server) as reader, wire(engine_server) as client:
        client.call("FLUSHALL")
        client.call("XADD", "s", "1-0", "a", "0")
        reader.send("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
        wait_blocked(client, 1)
        for words in ("MULTI", "XADD s 1-1 a 1", "XDEL s 1-1", "EXEC"):
            client.call(*words.split())
        wait_blocked(client, 1)
        client.call("XADD", "s", "2-1", "a", "2")
        assert reader.reply()[0][1][0][0] == b"2-1"


def test_a_blocked_group_reader_learns_that_its_group_is_deleted(server: Server) -> None:
    """XGROUP DESTROY and DEL unblock with an error (its text differs between Redis 7.0 and 7.2)."""
    for ending in ("XGROUP DESTROY s g", "DEL s", "SET s x", "FLUSHALL"):
        with wire(server) as reader, wire(server) as client:
            client.call("DEL", "s")
            client.call("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
            reader.send("XREADGROUP", "GROUP", "g", "c", "BLOCK", "0", "STREAMS", "s", ">")
            wait_blocked(client, 1)
            client.call(*ending.split())
            assert isinstance(reader.reply(), Failed)


def test_client_unblock(server: Server) -> None:
    """CLIENT UNBLOCK ends the wait with nil, or with an error where asked for."""
    with wire(server) as reader, wire(server) as client:
        identity = reader.call("CLIENT", "ID")
        reader.send("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
        wait_blocked(client, 1)
        assert client.call("CLIENT", "UNBLOCK", identity) == 1
        assert reader.reply() is None
        reader.send("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
        wait_blocked(client, 1)
        assert client.call("CLIENT", "UNBLOCK", identity, "ERROR") == 1
        assert reader.reply() == "UNBLOCKED client unblocked via CLIENT UNBLOCK"
        assert client.call("CLIENT", "UNBLOCK", identity) == 0


def test_a_reader_that_hangs_up_takes_nothing(server: Server) -> None:
    """An entry is not delivered to a consumer whose connection has gone."""
    with wire(server) as client:
        client.call("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
        with wire(server) as reader:
            reader.send("XREADGROUP", "GROUP", "g", "gone", "BLOCK", "0", "STREAMS", "s", ">")
            wait_blocked(client, 1)
        wait_blocked(client, 0)
        client.call("XADD", "s", "1-1", "a", "1")
        assert client.call("XPENDING", "s", "g")[0] == 0


def test_a_slow_reader_holds_up_nobody(server: Server) -> None:
    """A client that asks for 100 MB and does not read them leaves the others their latency."""
    with wire(server) as client, wire(server) as slow:
        for _ in range(10):
            client.call("XADD", "s", "*", "f", b"x" * 1_000_000)
        for _ in range(10):
            slow.send("XRANGE", "s", "-", "+")
        for _ in range(5):
            begun = machine_seconds()
            assert client.call("PING") == b"PONG"
            assert machine_seconds() - begun < 5
        for _ in range(10):
            assert len(slow.reply()) == 10


def test_a_slow_reader_does_not_make_the_engine_grow(engine_server: Server) -> None:
    """Two thousand pipelined reads of 10 MB each are not answered ahead of their reader, and all are answered."""
    with wire(engine_server) as client, wire(engine_server) as slow:
        client.call("FLUSHALL")
        for _ in range(10):
            client.call("XADD", "s", "*", "f", b"x" * 1_000_000)
        slow.socket.sendall(command("XRANGE", "s", "-", "+") * 2000 + command("PING"))
        for _ in range(100):
            assert client.call("PING") == b"PONG"
        info = client.call("INFO", "memory").decode().split("\r\n")
        used = next(int(line.partition(":")[2]) for line in info if line.startswith("used_memory_rss:"))
        assert used < 300_000_000
        for _ in range(20):
            assert len(slow.reply()) == 10


class Steps:
    """Counts the instructions of the engine's code in this thread."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Steps:
        sys.settrace(self._entered)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _entered(self, frame: FrameType, event: str, _: object) -> object:
        frame.f_trace_opcodes = True
        self.count += event == "opcode"
        return self._entered


def steps_of_a_turn(waiting: int) -> int:
    """The instructions between two commands, while this number of clients waits, ten of them for claims."""
    engine = new_engine(lambda: 1_000_000)
    parser = RequestParser()

    def call(*words: object) -> None:
        engine.run(engine.connect("test", "test"), parser.feed(command(*words)), [], 1 << 30)

    call("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    call("XADD", "s", "1-1", "a", "1")
    call("XREADGROUP", "GROUP", "g", "other", "STREAMS", "s", ">")
    for number in range(10):
        words = ("XREADGROUP", "GROUP", "g", number, "BLOCK", 600_000, "CLAIM", 1_000 + number, "STREAMS", "s", ">")
        call(*words)
    for number in range(waiting):
        call("XREAD", "BLOCK", 600_000 + number, "STREAMS", "other", "$")
    assert engine.waiters.count == waiting + 10
    with Steps() as steps:
        engine.waiters.expire(engine.now)
        assert engine.waiters.next_deadline() == 1_001_000
    return steps.count


def test_clients_that_wait_cost_other_commands_nothing() -> None:
    """A turn of the loop takes as many instructions with 2,000 waiting clients as with none."""
    assert steps_of_a_turn(2_000) == steps_of_a_turn(0)


def test_an_entry_is_offered_to_each_waiting_consumer_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The read of the consumer that gets the entry changes nothing for the others, so they are not asked again."""
    engine = new_engine(lambda: 1_000_000)
    parser = RequestParser()
    offers: list[Waiter] = []
    offer = Waiters._try
    monkeypatch.setattr(Waiters, "_try", lambda waiters, waiter: (offers.append(waiter), offer(waiters, waiter)))

    def call(*words: object) -> None:
        engine.run(engine.connect("test", "test"), parser.feed(command(*words)), [], 1 << 30)

    call("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    for number in range(10):
        claim = ("CLAIM", 1_000) if number % 2 else ()
        call("XREADGROUP", "GROUP", "g", number, "BLOCK", 0, *claim, "STREAMS", "s", ">")
    call("XADD", "s", "1-1", "a", "1")
    assert (len(offers), len(set(offers)), engine.waiters.count) == (10, 10, 9)


def test_moments_of_clients_that_have_gone_are_dropped() -> None:
    """Clients that wait and go leave nothing, and deadlines come in their order."""
    now = [1_000_000]
    engine = new_engine(lambda: now[0])
    parser = RequestParser()
    ended: list[int] = []
    engine.send = lambda client, _: ended.append(client.id)
    staying: list[int] = []
    for number in range(1_000):
        client = engine.connect("test", "test")
        block = 5_000 - number if number % 10 == 0 else 600_000
        engine.run(client, parser.feed(command("XREAD", "BLOCK", block, "STREAMS", "s", "$")), [], 1 << 30)
        if number % 10:
            engine.forget(client)
        else:
            staying.insert(0, client.id)
    assert len(engine.waiters._moments) < 1_000
    assert engine.waiters.next_deadline() == 1_000_000 + 5_000 - 990
    now[0] += 4_999
    engine.waiters.expire(engine.tick())
    assert (ended, engine.waiters.count) == (staying[:-1], 1)
    assert engine.waiters.next_deadline() == 1_005_000
