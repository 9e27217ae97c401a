"""Batches of more than a few entries."""

from __future__ import annotations

from tools.simulation.step import Step, pick
from tools.simulation.world import World


def pour(world: World, step: Step) -> None:
    """Add 20 to 100 entries."""
    world.add(pick(world.names(), step.choice), 20 + int(step.amount * 81))
