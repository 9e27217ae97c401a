"""The product as the simulation patches it: its connections take what the product's own take."""

from __future__ import annotations

import redis

from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Connection
from tools.servers.server import Server
from tools.simulation.histories import plan
from tools.simulation.patched import product
from tools.simulation.run import run
from tools.simulation.setup import Step
from tools.simulation.world import World


def test_a_connection_can_ask_for_the_memory_of_its_server(server: Server, client: redis.Redis) -> None:
    """As the error of a full server does, on a connection of its own to the same node."""
    found: list[bool] = []

    def ask(world: World, step: Step) -> None:
        with Connection(Address.parse(world.server.url)) as asking:
            found.append(asking.memory().used > 0)

    with product(server):
        assert run(server, client, plan("ask"), beside={"ask": ask}).failures == []
    assert found == [True]
