"""Queries of the group on another machine: one with the query's consumer, and other consumers that are queries."""

from __future__ import annotations

from tools.simulation.powers_others import NAMES
from tools.simulation.powers_rivals import has_all_leases
from tools.simulation.step import Step, pick
from tools.simulation.world import CONSUMER, World


def elsewhere(world: World, step: Step) -> None:
    """Start the query once more, on another machine. It is refused while the query runs. If the query does not run, it
    has the leases when the query's session is over."""
    is_refused = world.query.running
    if is_refused and not (world.rival is None and world.keeps_leases and has_all_leases(world)):
        return
    process = world.process
    begins = world.elsewhere.begin(CONSUMER, _existing(world))
    if begins and is_refused and world.process == process:
        if world.keeps_leases:
            world.fail(f"two queries | {world.query.mode}", "a second query, on another machine, has the consumer")
        world.elsewhere.forget()  # a lease was deleted: the query notices it later


def guest(world: World, step: Step) -> None:
    """Another consumer is a query on another machine."""
    consumer = pick(NAMES, step.how)
    if all(holder.consumer != consumer for holder in world.elsewhere.living):
        world.elsewhere.begin(consumer, _existing(world))


def perish(world: World, step: Step) -> None:
    """A query on the other machine dies."""
    if world.elsewhere.living:
        world.elsewhere.end(pick(world.elsewhere.living, step.choice))


def _existing(world: World) -> list[str]:
    return [name for name in world.query.reads() if world.see(name).exists]
