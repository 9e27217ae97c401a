"""Powers of the other consumers of the group: they read, acknowledge, die, leave."""

from __future__ import annotations

from tools.simulation.step import Step, part, pick
from tools.simulation.world import GROUP, Seen, World, is_ours

NAMES = ["bob", "eve"]
_LONG_AGO = 100_000_000  # milliseconds, more than plan.CLAIM_IDLE


def read(world: World, step: Step) -> None:
    """XREADGROUP >, one to six entries."""
    name, consumer = pick(world.names(), step.which), pick(NAMES, step.how)
    if world.see(name).position is None:
        return
    found = world.client.xreadgroup(GROUP, consumer, {name: ">"}, count=1 + int(step.much * 6))
    world.model.stream(name).suffers("others read")
    world.model.is_shared(name)
    for _, entries in found:
        world.model.hand(world.model.of(name, [str(one) for one, _ in entries]), consumer)


def acknowledge(world: World, step: Step) -> None:
    """XACK of what it has."""
    name, consumer = pick(world.names(), step.which), pick(NAMES, step.how)
    mine = _held(world.see(name), consumer)
    if mine:
        chosen = mine[: part(len(mine), step.much)]
        world.client.xack(name, GROUP, *chosen)
        world.model.excuse(world.model.of(name, chosen), "others have acknowledged it")


def die(world: World, step: Step) -> None:
    """It has died long ago: all that it has is idle."""
    consumer = pick(NAMES, step.how)
    for name in world.names():
        seen = world.see(name)
        mine = [one for one in _held(seen, consumer) if one in seen.ids]
        if mine:
            world.client.xclaim(name, GROUP, consumer, 0, mine, idle=_LONG_AGO, justid=True)


def leave(world: World, step: Step) -> None:
    """XGROUP DELCONSUMER: what it has is nobody's."""
    name, consumer = pick(world.names(), step.which), pick(NAMES, step.how)
    seen = world.see(name)
    if consumer in seen.consumers:
        world.client.xgroup_delconsumer(name, GROUP, consumer)
        world.model.excuse(world.model.of(name, _held(seen, consumer)), "others have left with it")


def _held(seen: Seen, consumer: str) -> list[str]:
    assert not is_ours(consumer)
    return [one for one, owner in seen.pending.items() if owner == consumer]
