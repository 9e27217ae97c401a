"""One run, step by step."""

from __future__ import annotations

from collections.abc import Sequence

from tools.simulation.patched import product
from tools.simulation.plan import make
from tools.simulation.run import run
from tools.simulation.soak import serving, shrunk


def story(kind: str, seed: int, complete: bool, additions: Sequence[str]) -> int:
    """Print one run step by step. Unless `complete`, its plan is shrunk as far as it fails alike."""
    with serving(kind) as server, product(server), server.client(decode_responses=True) as client:
        plan = make(seed, *additions)
        if not complete:
            plan = shrunk(server, client, plan)
        outcome = run(server, client, plan, print)
        print(plan)
        for failure in outcome.failures:
            print(f"{failure.kind}\n    {failure.details}")
        return bool(outcome.failures)
