"""One history of the model and of the product, compared step by step: offsets, what was read, what stopped a query, and
at each idle trigger the group and what is pending (what was not acknowledged)."""

from __future__ import annotations

from typing import Any

from tools.simulation.core_model.product import Product
from tools.simulation.core_model.scenarios import kind_of, limit_of
from tools.simulation.core_model.subject import MODEL
from tools.simulation.core_model.truth import Scenario
from tools.simulation.core_model.world import World


def trace_of(product: Product, seed: int, scenario: Scenario, is_model: bool) -> tuple[list[Any], list[str]]:
    """Run a history. Return its steps, and what went wrong that no limit explains."""
    steps: list[Any] = []
    world = World(product.server, seed, scenario, MODEL if is_model else product, steps)
    world.run()
    return steps, [failure for failure in world.wrong if not limit_of(kind_of(failure))]


def differences(product: Product, seed: int, scenario: Scenario) -> list[str]:
    """Return the first step in which model and product differ, and what went wrong in one of them."""
    model, wrong = trace_of(product, seed, scenario, is_model=True)
    steps, also_wrong = trace_of(product, seed, scenario, is_model=False)
    found = [f"{scenario.name}, seed {seed}: {failure}" for failure in (*wrong, *also_wrong)]
    place = next((n for n, pair in enumerate(zip(model, steps, strict=False)) if pair[0] != pair[1]), len(model))
    if model != steps:
        found.append(
            f"{scenario.name}, seed {seed}, step {place}: {model[place : place + 1]} {steps[place : place + 1]}"
        )
    return found
