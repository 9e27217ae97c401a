"""The core in this process: blocked commands, broken connections and time, as a server has them."""

from __future__ import annotations

import time

import pytest

from spark_streams.base.ids import StreamId
from spark_streams.connector.errors import ServerUnreachableError
from spark_streams.connector.wire.address import Address, Patience
from spark_streams.connector.wire.connect import BlockedRead
from spark_streams.connector.wire.connection import Connection
from tools.simulation.in_process.core import Core
from tools.simulation.in_process.patches import on_core
from tools.simulation.in_process.server import ProcessServer

ADDRESS = Address.parse(ProcessServer().url)


@pytest.fixture
def core() -> Core:
    return ProcessServer().core


def test_a_blocked_command_returns_when_the_clock_says_so(core: Core) -> None:
    with on_core(core), core.clock.in_charge(), Connection(ADDRESS) as server:
        began = time.monotonic()
        assert server.execute("XREAD", "BLOCK", 4_000, "STREAMS", "s", "$") is None
        assert time.monotonic() - began == pytest.approx(4, abs=0.1)


def test_a_blocked_command_returns_when_another_client_says_so(core: Core) -> None:
    with on_core(core), core.clock.in_charge(), Connection(ADDRESS) as server, Connection(ADDRESS) as producer:
        waiting = BlockedRead(ADDRESS)
        waiting.begin({"s": StreamId.parse("0-0")}, 60)
        assert not waiting.is_over(1)
        producer.execute("XADD", "s", "1-1", "n", 1)
        assert waiting.is_over(1)
        waiting.close()
        assert server.execute("XLEN", "s") == 1


def test_a_silent_server_is_lost_after_its_time(core: Core) -> None:
    """A command that blocks for longer than the connection may be silent."""
    with on_core(core), core.clock.in_charge(), Connection(ADDRESS) as server:
        with pytest.raises(ServerUnreachableError, match="no answer for 5 s"):
            server.execute("XREAD", "BLOCK", 60_000, "STREAMS", "s", "$")
        assert not server.is_open


def test_a_broken_connection_raises_and_the_next_one_finds_what_was_written(core: Core) -> None:
    with on_core(core), core.clock.in_charge(), Connection(ADDRESS) as server:
        server.send(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n")
        core.lines[max(core.lines)].cut()
        with pytest.raises(ServerUnreachableError, match="it closed the connection"):
            server.next_reply()
        with Connection(ADDRESS) as again:
            assert again.execute("GET", "k") == b"v"


def test_afterwards_the_product_waits_in_real_time_again(core: Core) -> None:
    real = time.monotonic
    with on_core(core):
        with core.clock.in_charge():
            assert time.monotonic is not real
        assert time.monotonic is real
    assert Patience().sleep is time.sleep
