"""Faults of the network and a failover, one at a time: what the server has executed, and what the product learns."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_streams.connector.errors import ServerUnreachableError
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Connection
from tools.simulation import powers_accidents
from tools.simulation.elsewhere import Elsewhere
from tools.simulation.histories import more, plan
from tools.simulation.in_process.server import ProcessServer
from tools.simulation.patched import in_world, product
from tools.simulation.run import run
from tools.simulation.setup import Step
from tools.simulation.world import World

SERVER = ProcessServer()
ADDRESS = Address.parse(SERVER.url)


@pytest.fixture
def world() -> Iterator[World]:
    """A world without a query."""
    with product(SERVER), SERVER.client(decode_responses=True) as client:
        SERVER.core.begin(1)
        world = World(SERVER, client, plan(), None)
        world.births, world.elsewhere = Quiet(), Elsewhere(world)
        with in_world(world):
            yield world


class Quiet:
    """Births of no query."""

    def update(self) -> None:
        """Nothing is born."""


@pytest.mark.parametrize(("how", "executed"), [(0.1, None), (0.9, "v")], ids=["requests", "replies"])
def test_the_network_parts_in_one_direction(world: World, how: float, executed: str | None) -> None:
    """On each open connection: either nothing arrives, or it is executed, and no reply arrives."""
    one, other = Connection(ADDRESS), Connection(ADDRESS)
    powers_accidents.part(world, Step("part", amount=0.2, how=how))
    for key, connection in (("a", one), ("b", other)):
        with pytest.raises(ServerUnreachableError, match="lost the stream server"):
            connection.execute("SET", key, "v")
        assert world.client.get(key) == executed
    for _ in range(2):
        with pytest.raises(ServerUnreachableError, match="simulated outage"):
            Connection(ADDRESS)
    with Connection(ADDRESS) as again:
        assert again.execute("SET", "c", "v") == b"OK"


@pytest.mark.parametrize(("amount", "is_lost"), [(0.2, False), (0.5, True)])
def test_a_slow_reply_takes_the_time_of_the_plan(world: World, amount: float, is_lost: bool) -> None:
    """A reply that takes longer than a connection may be silent is lost, and its command was executed."""
    server, began = Connection(ADDRESS), SERVER.core.clock.monotonic()
    powers_accidents.slow(world, Step("slow", amount=amount))
    if is_lost:
        with pytest.raises(ServerUnreachableError):
            server.execute("SET", "k", "v")
    else:
        assert server.execute("SET", "k", "v") == b"OK"
    assert world.client.get("k") == "v"
    assert SERVER.core.clock.monotonic() - began == pytest.approx(min(20 * amount, 5), abs=0.1)


def test_a_failover_at_any_moment_loses_only_what_was_written_since() -> None:
    """The writes of the first trigger, up to any moment of it, are lost with the old master."""
    with product(SERVER), SERVER.client(decode_responses=True) as client:
        told: list[str] = []
        for after in range(1, 60, 6):
            steps = [Step("fail_over", after, amount=0.2), "trigger", more(2), "trigger", "trigger"]
            failures = run(SERVER, client, plan(*steps), told.append).failures
            assert not failures, f"after {after} ticks: {failures[0].kind}\n{failures[0].details}"
    assert sum("promote" in line for line in told) == 10
