"""An operator asks where entries are (`rstream where`), and the answers are compared with the model."""

from __future__ import annotations

import random

from tools.simulation.journeys import Asker
from tools.simulation.step import Step
from tools.simulation.world import World


def where(world: World, step: Step) -> None:
    """Ask about one to six entries and dead letters."""
    world.asks = True
    Asker(world, random.Random(f"{world.setup.seed} {step.choice}")).ask(1 + int(step.amount * 6))
