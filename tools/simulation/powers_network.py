"""Accidents of the network, of keys that are not streams, and of the producers' clock."""

from __future__ import annotations

from tools.simulation.network import SILENCE, break_connection
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
        break_connection(connection)
    world.away |= bool(broken)


def away(world: World, step: Step) -> None:
    """Server outage: all connections break, and the next few attempts to connect are refused."""
    world.break_connections()
    world.network.refused = 1 + int(step.amount * 6)


def part(world: World, step: Step) -> None:
    """The network parts driver and tasks from the server in one direction: what each open connection sends next does
    not arrive, or is executed and its reply does not arrive. Attempts to connect fail meanwhile."""
    world.network.parted = "requests" if step.how < 0.5 else "replies"
    world.away = True
    world.network.refused = 1 + int(step.amount * 6)


def slow(world: World, step: Step) -> None:
    """The next reply takes up to 20 seconds: longer than a connection may be silent, or than a lease lasts."""
    world.network.late = 20 * step.amount
    world.away |= world.network.late >= SILENCE


def hurry(world: World, step: Step) -> None:
    """The driver's thread works at another pace from now on (plan.Setup)."""
    world.pace = pick([-1, 0, 1, 2, 5], step.how)


def evict(world: World, step: Step) -> None:
    """Delete a key of the library, as an eviction or an operator may do."""
    pattern = dict(step.options).get("key", "rstream:*")
    keys = sorted(str(key) for key in world.client.scan_iter(pattern, count=1000))
    if keys:
        key = pick(keys, step.choice)
        world.tell(f"      {key}")
        world.client.delete(key)
        kind = "evicted " + ":".join(key.split(":")[1:2])
        if kind == "evicted first":
            world.births.forget()
        for name in [*world.names(), OUT]:
            world.model.stream(name).suffers(kind)


def clock(world: World, step: Step) -> None:
    """Set the producers' clock back, or forward."""
    world.ms += int((step.how - 0.5) * 20_000)
