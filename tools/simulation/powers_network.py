"""Accidents of the network, of keys that are not streams, and of the producers' clock."""

from __future__ import annotations

import contextlib
import socket

from spark_streams.wire.connection.connection import Connection
from tools.simulation.once import OUT
from tools.simulation.step import Step, pick
from tools.simulation.world import World


def cut(world: World, step: Step) -> None:
    """Break a connection before or after its bytes have arrived, or all connections if none is in use."""
    broken = (
        [connection for connection, _ in world.connections]
        if world.connection is None or step.how < 0.2
        else [world.connection]
    )
    for connection in broken:
        _break(connection)
    world.away |= bool(broken)


def away(world: World, step: Step) -> None:
    """Server outage: all connections break, and the next few attempts to connect are refused."""
    for connection, _ in world.connections:
        _break(connection)
    world.away = True
    world.unreachable = 1 + int(step.amount * 6)


def evict(world: World, step: Step) -> None:
    """Delete a key of the library, as an eviction or an operator may do."""
    keys = sorted(str(key) for key in world.client.scan_iter("rstream:*", count=1000))
    if keys:
        key = pick(keys, step.choice)
        world.tell(f"      {key}")
        world.client.delete(key)
        kind = "evicted " + ":".join(key.split(":")[1:2])
        for name in [*world.names(), OUT]:
            world.model.stream(name).suffers(kind)


def clock(world: World, step: Step) -> None:
    """Set the producers' clock back, or forward."""
    world.ms += int((step.how - 0.5) * 20_000)


def _break(connection: Connection) -> None:
    open_socket = connection._connection._sock  # there is no public name for it
    if open_socket is not None:
        with contextlib.suppress(OSError):
            open_socket.shutdown(socket.SHUT_RDWR)
