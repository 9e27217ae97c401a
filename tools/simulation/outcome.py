"""What a run has shown."""

from __future__ import annotations

from dataclasses import dataclass

from tools.simulation.setup import Plan
from tools.simulation.world import Failure


@dataclass(frozen=True)
class Outcome:
    """Outcome of a run. digest: of all commands and replies; 0 on a server that runs in its own time."""

    plan: Plan
    failures: list[Failure]
    batches: int
    ticks: int
    digest: int = 0
