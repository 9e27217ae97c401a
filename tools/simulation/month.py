"""Weeks of a query within seconds, on the plan's clock: what a server and a driver keep must not grow with the days.

A day has new entries, some of which do not fit, are retried and become dead letters; a consumer that dies with pending
entries; a redrive; a trim; hours without entries. Each tenth day the driver is killed.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import redis

from spark_streams.connector.wire.sockets import socket_of
from tools.simulation.histories import more, plan
from tools.simulation.in_process.server import ProcessServer
from tools.simulation.patched import product
from tools.simulation.run import run
from tools.simulation.setup import Plan, Step
from tools.simulation.sinks import OUT
from tools.simulation.world import Outcome, World

OPTIONS = {
    "mode": "DEADLETTER",
    "deadLetterStream": "dead",
    "retryDelay": "1m,1h",
    "maxDeliveries": "3",
    "claimIdle": "10m",
    "maxEntriesPerTrigger": "20",
}
_HOUR = 3600.0
_KILLED = 10  # days
_STORE = "spark_streams.engine.store"  # holds that stream


@dataclass(frozen=True)
class Evening:
    """What exists at the end of a day. keys, clients, items (fields, members and entries, but those of the stream that
    the sink writes): of the server; objects: of classes of the product in this process; the first life's are frozen."""

    day: int
    keys: int
    items: int
    clients: int
    consumers: int
    objects: int


def growth(evenings: Sequence[Evening]) -> list[str]:
    """Return what is more on the last evening than on that of the second life's second day, by name."""
    if len(evenings) < 2 * _KILLED:
        raise ValueError(f"growth shows after {2 * _KILLED} days, not {len(evenings)}")
    early, late = asdict(evenings[_KILLED + 1]), asdict(evenings[-1])
    return [f"{name}: {early[name]} … {late[name]}" for name in early if name != "day" and late[name] > early[name]]


def live(days: int) -> tuple[Outcome, list[Evening]]:
    """Live so many days. Return the outcome and each evening."""
    server = ProcessServer()
    evenings: list[Evening] = []

    def hours(world: World, step: Step) -> None:
        world.network.pass_time(step.amount * _HOUR)

    def evening(world: World, _step: Step) -> None:
        evenings.append(_evening(world, server, len(evenings) + 1))

    with product(server), server.client(decode_responses=True) as client:
        outcome = run(server, client, _month(days), beside={"hours": hours, "evening": evening})
    return outcome, evenings


def _month(days: int) -> Plan:
    made = plan(*(step for day in range(days) for step in _day(day)), sink="once", **OPTIONS)
    return replace(made, setup=replace(made.setup, has_values=True))


def _day(day: int) -> Iterator[Step]:
    trigger = Step("trigger")
    yield from (more(6), Step("misfit", amount=0.3), trigger, trigger)
    yield from (more(4), Step("read", amount=0.5), Step("die"), trigger)
    if day % _KILLED == _KILLED - 1:
        yield from (more(2), Step("kill"), trigger)
    for _ in range(4):  # retries, and a claim
        yield from (Step("hours", amount=1.5), trigger, trigger)
    yield from (Step("redrive", choice=0.9, amount=1.0), trigger, trigger)
    for _ in range(8):
        yield from (Step("hours", amount=2.0), trigger)
    yield from (Step("trim", amount=1.0), trigger, Step("evening"))


def _evening(world: World, server: ProcessServer, day: int) -> Evening:
    # The world keeps each connection, to break it.
    world.connections = [(one, actor) for one, actor in world.connections if socket_of(one._connection) is not None]
    gc.collect()
    modules = (str(type(one).__module__) for one in gc.get_objects())
    objects = sum(name.startswith("spark_streams.") and not name.startswith(_STORE) for name in modules)
    consumers = sum(len(world.see(name).consumers) for name in world.names())
    return Evening(day, int(world.raw.dbsize()), _items(world.raw), len(server.core.lines), consumers, objects)


def _items(client: redis.Redis) -> int:
    count = {b"hash": client.hlen, b"zset": client.zcard, b"set": client.scard, b"stream": client.xlen}
    total = 0
    for key in {*client.scan_iter()} - {OUT.encode()}:
        kind: Any = client.type(key)
        total += int(count[kind](key)) if kind in count else 1
    return total
