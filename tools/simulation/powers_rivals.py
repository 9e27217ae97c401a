"""A second process that runs the same query, with the same consumer."""

from __future__ import annotations

import json
import time
from typing import Any

from spark_streams.connector.errors import ConsumerTakenError, RStreamError
from spark_streams.connector.source.group_client import lease_key
from tools.simulation.step import Step
from tools.simulation.world import CONSUMER, GROUP, World

_RIVAL = 1_000_000  # more than any number of a driver's process
_STANDS_STILL = 20.0  # seconds, more than a session lasts


def rival(world: World, step: Step) -> None:
    """Start the query once more. It is refused as long as the session of the first one lasts, and the server does not
    forget it meanwhile. If the server refuses commands of this one for so long, the first one has stood still."""
    is_refused, began = world.query.running and world.rival is None and has_all_leases(world), time.monotonic()
    has_begun = is_refused and _begins(world)
    if has_begun and time.monotonic() - began > _STANDS_STILL / 2:
        world.rival, world.has_successor = _RIVAL, True
    elif has_begun and world.keeps_leases and _holders(world):
        world.fail(f"two queries | {world.query.mode}", "a second query has the consumer of a running one")


def stall(world: World, step: Step) -> None:
    """The driver stands still, and another one takes its lease. It must notice that with its next trigger."""
    if world.query.running and world.rival is None and has_all_leases(world):
        world.network.pass_time(_STANDS_STILL)
        if not has_all_leases(world):
            _begins(world)
        holders = {lease["pid"] for lease in _leases(world).values() if lease}  # also if a session was evicted since
        if _RIVAL in holders:
            # A stream that is new has no lease yet: the successor may have those of the others.
            world.rival, world.has_successor = _RIVAL, holders == {_RIVAL}
            world.tell("      it has a successor")


def _begins(world: World) -> bool:
    """Let another process begin to read. Return whether it has the lease of all streams; False also if it cannot reach
    the server."""
    first, world.process, world.rival = world.process, _RIVAL, world.process
    world.keeps_leases = True
    try:
        reader = world.query.another_reader()
        start = reader.initialOffset()
        batches, begin = reader.batches_from(start)
        batches.open_groups(begin, (), lambda client: None)
    except ConsumerTakenError:
        return False
    except RStreamError as error:
        world.tell(f"      {error}")
        return False
    finally:
        world.process, world.rival = first, None
    return True


def has_all_leases(world: World) -> bool:
    """Whether the query has the leases of all its streams that exist, and its session lasts."""
    return {*_holders(world).values()} == {world.process}


def _holders(world: World) -> dict[str, int | None]:
    """Return the process that has the lease of each stream of the query that exists; None: its session has ended."""
    return {
        name: lease["pid"] if lease and world.client.exists(lease["session"]) else None
        for name, lease in _leases(world).items()
    }


def _leases(world: World) -> dict[str, dict[str, Any]]:
    """Return the lease of each stream of the query that exists; empty: it has none."""
    return {
        name: json.loads(world.client.get(lease_key(name, GROUP, CONSUMER)) or "{}")
        for name in world.query.reads()
        if world.see(name).exists
    }
