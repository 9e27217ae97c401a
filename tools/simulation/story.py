"""One run, step by step."""

from __future__ import annotations

from tools.simulation.patched import product
from tools.simulation.run import run
from tools.simulation.setup import Plan
from tools.simulation.soak import serving, shrunk


def story(kind: str, plan: Plan, complete: bool) -> int:
    """Print one run step by step. Unless `complete`, its plan is shrunk as far as it fails alike."""
    with serving(kind) as server, product(server), server.client(decode_responses=True) as client:
        if not complete:
            plan = shrunk(server, client, plan)
        outcome = run(server, client, plan, print)
        print(plan)
        for failure in outcome.failures:
            print(f"{failure.kind}\n    {failure.details}")
        return bool(outcome.failures)
