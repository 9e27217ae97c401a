"""Actions of the other consumers of the group: read, acknowledge, die, leave."""

from __future__ import annotations

from spark_streams.connector.source.commit_mark import committed_key
from spark_streams.operations.verify.history import id_key
from tools.simulation.step import Step, part, pick
from tools.simulation.world import GROUP, Seen, World, is_ours

NAMES = ["bob", "eve"]
OTHER_QUERY = "0123456789ab-0123456789ab"  # name of its last batch
_LONG_AGO = 100_000_000  # milliseconds, more than options.CLAIM_IDLE


def read(world: World, step: Step) -> None:
    """XREADGROUP > for one to six entries."""
    name, consumer = pick(world.names(), step.choice), pick(NAMES, step.how)
    was = world.see(name).position
    if was is None:
        return
    replies = world.client.xreadgroup(GROUP, consumer, {name: ">"}, count=1 + int(step.amount * 6))
    world.model.stream(name).suffers("others read")
    world.model.is_shared(name)
    now = world.see(name).position
    assert now is not None
    # Documented: the server does not say whose entries were removed.
    passed = [entry for entry in world.model.entries_of(name) if id_key(was) < entry.key <= id_key(now)]
    world.model.excuse([entry for entry in passed if entry.removed_by], "removed, and others have read past it")
    for _, entries in replies:
        world.model.deliver_to_other(world.model.entries_of(name, [str(entry_id) for entry_id, _ in entries]), consumer)


def acknowledge(world: World, step: Step) -> None:
    """XACK some entries of another consumer."""
    name, consumer = pick(world.names(), step.choice), pick(NAMES, step.how)
    mine = _held(world.see(name), consumer)
    if mine:
        ids = mine[: part(len(mine), step.amount)]
        world.client.xack(name, GROUP, *ids)
        world.model.excuse(world.model.entries_of(name, ids), "others have acknowledged it")


def die(world: World, step: Step) -> None:
    """Make all entries of another consumer idle, as if it had died long ago."""
    consumer = pick(NAMES, step.how)
    for name in world.names():
        seen = world.see(name)
        mine = [entry_id for entry_id in _held(seen, consumer) if entry_id in seen.ids]
        if mine:
            world.client.xclaim(name, GROUP, consumer, 0, mine, idle=_LONG_AGO, justid=True)


def enlist(world: World, step: Step) -> None:
    """Let another consumer be one of a query: it has a commit mark."""
    name, consumer = pick(world.names(), step.choice), pick(NAMES, step.how)
    seen = world.see(name)
    if consumer in seen.consumers:
        world.client.set(committed_key(name, GROUP, consumer), f"{seen.position} 1.{OTHER_QUERY}")


def release(world: World, step: Step) -> None:
    """XNACK some entries of another consumer: the query must read them, with claimIdle or without."""
    name, consumer = pick(world.names(), step.choice), pick(NAMES, step.how)
    seen = world.see(name)
    mine = [entry_id for entry_id in _held(seen, consumer) if entry_id in seen.ids]
    ids = mine[: part(len(mine), step.amount)]
    if ids and world.supports_xnack:
        mode = pick(["SILENT", "FAIL"], (step.how * 10) % 1)
        world.client.execute_command("XNACK", name, GROUP, mode, "IDS", len(ids), *ids)
        released = world.model.entries_of(name, ids)
        world.model.give_back(released)
        for entry in released:
            entry.only_pending = True


def leave(world: World, step: Step) -> None:
    """XGROUP DELCONSUMER: its pending entries are dropped."""
    name, consumer = pick(world.names(), step.choice), pick(NAMES, step.how)
    seen = world.see(name)
    if consumer in seen.consumers:
        world.client.xgroup_delconsumer(name, GROUP, consumer)
        world.model.excuse(world.model.entries_of(name, _held(seen, consumer)), "others have left with it")


def _held(seen: Seen, consumer: str) -> list[str]:
    assert not is_ours(consumer)
    return [entry_id for entry_id, owner in seen.pending.items() if owner == consumer]
