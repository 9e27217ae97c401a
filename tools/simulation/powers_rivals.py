"""A second process that runs the same query, with the same consumer."""

from __future__ import annotations

import json

from spark_streams.errors import ConsumerTakenError, RStreamError
from spark_streams.source.group.lease_and_checks import lease_key
from tools.simulation.step import Step
from tools.simulation.world import CONSUMER, GROUP, World

_RIVAL = 1_000_000  # more than any number of a driver's process
_STANDS_STILL = 20.0  # seconds, more than a session lasts


def rival(world: World, step: Step) -> None:
    """Start the query once more. It is refused as long as the session of the first one lasts."""
    if world.query.running and world.rival is None and _is_held(world, world.process) and _begins(world):
        world.fail(f"two queries | {world.query.mode}", "a second query has the consumer of a running one")


def stall(world: World, step: Step) -> None:
    """The driver stands still, and another one takes its lease. It must notice that with its next trigger."""
    if world.query.running and world.rival is None and _is_held(world, world.process):
        world.network.pass_time(_STANDS_STILL)
        if not _is_held(world, world.process) and _begins(world) and any(_held_by(world, _RIVAL)):
            # A stream that is new has no lease yet: the successor may have those of the others.
            world.rival, world.has_successor = _RIVAL, _is_held(world, _RIVAL)
            world.tell("      it has a successor")


def _begins(world: World) -> bool:
    """Let another process begin to read. Return whether it has the lease of all streams; False also if it cannot reach
    the server, or if the server has forgotten a lease meanwhile."""
    first, world.process, world.rival = world.process, _RIVAL, world.process
    world.keeps_leases = True
    try:
        reader = world.query.another_reader()
        start = reader.initialOffset()
        reader.batches.hold(reader.batches_from(start)[1])
    except ConsumerTakenError:
        return False
    except RStreamError as error:
        world.tell(f"      {error}")
        return False
    finally:
        world.process, world.rival = first, None
    return world.keeps_leases


def _is_held(world: World, process: int) -> bool:
    """Whether this process has the lease of all streams of the query that exist, and its session lasts."""
    held = _held_by(world, process)
    return bool(held) and all(held)


def _held_by(world: World, process: int) -> list[bool]:
    """Return for each stream of the query that exists whether this process has its lease, and its session lasts."""
    found: list[bool] = []
    for name in [name for name in world.query.reads() if world.see(name).exists]:
        held = json.loads(world.client.get(lease_key(name, GROUP, CONSUMER)) or "{}")
        found.append(held.get("pid") == process and bool(world.client.exists(held["session"])))
    return found
