"""Powers of fate over the way to the server, over keys that are no streams, and over the producers' clock."""

from __future__ import annotations

import contextlib
import socket

from spark_streams.wire.connection.connection import Connection
from tools.simulation.once import OUT
from tools.simulation.step import Step, pick
from tools.simulation.world import World


def cut(world: World, step: Step) -> None:
    """A connection breaks, before or after what is being sent has arrived; all of them where none is in use."""
    found = [one for one, _ in world.connections] if world.at is None or step.how < 0.2 else [world.at]
    for one in found:
        _break(one)
    world.away |= bool(found)


def away(world: World, step: Step) -> None:
    """The server is away: all connections break, and the next few tries to connect are refused."""
    for one, _ in world.connections:
        _break(one)
    world.away = True
    world.unreachable = 1 + int(step.much * 6)


def evict(world: World, step: Step) -> None:
    """A key that the product keeps beside the streams is gone: memory was full, or somebody has cleaned up."""
    keys = sorted(str(key) for key in world.client.scan_iter("rstream:*", count=1000))
    if keys:
        key = pick(keys, step.which)
        world.tell(f"      {key}")
        world.client.delete(key)
        kind = "evicted " + ":".join(key.split(":")[1:2])
        for name in [*world.names(), OUT]:
            world.model.stream(name).suffers(kind)


def clock(world: World, step: Step) -> None:
    """The producers' clock is set back, or forward."""
    world.ms += int((step.how - 0.5) * 20_000)


def _break(connection: Connection) -> None:
    open_one = connection._connection._sock  # there is no public name for it
    if open_one is not None:
        with contextlib.suppress(OSError):
            open_one.shutdown(socket.SHUT_RDWR)
