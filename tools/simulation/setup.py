"""A run of the simulation as a value: its setup and its steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tools.simulation.step import Step


@dataclass(frozen=True)
class Setup:
    """Parameters of a run.

    sink: `recorder`, `skipping` or `once`; ahead: minimum of entries for which the next batch is reserved ahead; pace:
    ticks of the driver's thread for each tick of the world, 0: only while the driver waits for it, -1: all at once;
    options: of the first start; before: entries that exist before it; has_values: entries have a field that may not fit
    (seldom.py); limits: sizes of the query's requests (mixes.py), those that are missing are small ones;
    sink_elsewhere: the exactly-once sink writes to a server of its own; judges_marks: commit marks are judged
    (marks.py); command_us: microseconds that a command takes; drivers: 2: another one reads from the group, too
    (drivers.py).
    """

    seed: int
    streams: int
    sink: str
    ahead: int
    pace: int
    options: Mapping[str, str]
    before: int
    retries: int = 0
    chunk: int = 3
    has_values: bool = False
    limits: Mapping[str, int] = field(default_factory=dict)
    sink_elsewhere: bool = False
    judges_marks: bool = True
    command_us: int = 50
    drivers: int = 1


@dataclass(frozen=True)
class Plan:
    """A run."""

    setup: Setup
    steps: tuple[Step, ...]

    def without(self, places: range) -> Plan:
        """Return the plan without the steps at these indexes."""
        return replace(self, steps=tuple(step for index, step in enumerate(self.steps) if index not in places))

    def __str__(self) -> str:
        lines = [str(self.setup), *[f"  {index:>3}  {step}" for index, step in enumerate(self.steps)]]
        return "\n".join(lines)
