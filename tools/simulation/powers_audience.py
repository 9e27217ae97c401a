"""A second group that reads the same streams. What it has not acknowledged must stay (onCommit)."""

from __future__ import annotations

import redis

from tools.simulation.audience import AUDIENCE, check
from tools.simulation.moments import amid_a_trigger
from tools.simulation.step import Step, part, pick
from tools.simulation.world import World


def audit(world: World, step: Step) -> None:
    """Create the group; or let it read up to six entries, and acknowledge some of those that are pending."""
    name = pick(world.names(), step.choice)
    check(world)
    if name not in world.audited:
        try:
            world.client.xgroup_create(name, AUDIENCE, id="0")
        except redis.ResponseError:  # no stream, or a restored one that has the group
            return
        present, is_late = set(world.see(name).ids), amid_a_trigger(world)  # the query may have chosen what it removes
        world.audited[name] = {
            entry.n for entry in world.model.alive(name) if entry.id not in present or (is_late and entry.acknowledged)
        }
        return
    try:
        world.client.xreadgroup(AUDIENCE, "auditor", {name: ">"}, count=1 + int(step.amount * 6))
        pending = world.client.xpending_range(name, AUDIENCE, "-", "+", 1000)
    except redis.ResponseError:
        return
    done = [str(found["message_id"]) for found in pending][: part(len(pending), step.how)]
    if done:
        world.client.xack(name, AUDIENCE, *done)
