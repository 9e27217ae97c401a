"""A run of the simulation as a value: its setup and its steps. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from spark_streams.connector.wire.parts import MOST_ARGUMENTS

T = TypeVar("T")
NEVER_AHEAD = 1 << 62


@dataclass(frozen=True)
class Step:
    """One step. delay: ticks before it happens; 0: at once, between two actions of Spark. at: only ticks before a
    request with this text count.

    choice, amount, how: numbers from 0 to 1 that select among what exists when it happens, so that a step keeps a
    meaning if earlier steps are left out. options: of a (re)start; of an eviction, the pattern of the `key`.
    """

    kind: str
    delay: int = 0
    choice: float = 0.0
    amount: float = 0.0
    how: float = 0.0
    options: tuple[tuple[str, str], ...] = ()
    at: str = ""

    def __str__(self) -> str:
        parts = [f"{self.kind:<14}", f"in {self.delay} ticks" if self.delay else "at once"]
        parts += [f"at {self.at!r}"] if self.at else []
        parts.append(f"choice={self.choice:.2f} amount={self.amount:.2f} how={self.how:.2f}")
        if self.options:
            parts.append(" ".join(f"{name}={value}" for name, value in self.options))
        return "  ".join(parts)


def pick(values: list[T], fraction: float) -> T:
    """Return the value at this fraction of the list."""
    return values[min(int(fraction * len(values)), len(values) - 1)]


def part(count: int, amount: float) -> int:
    """Return this fraction of `count`: at least 1, unless `count` is 0."""
    return min(count, max(1, round(amount * count)))


def random_step(chance: random.Random, kind: str, delay: int | None = None) -> Step:
    """Return a step with random numbers. delay: None: a random one."""
    delay = chance.choice([0, chance.randint(1, 60)]) if delay is None else delay
    choice, amount, how = (round(0.999 * chance.random(), 3) for _ in range(3))
    return Step(kind, delay, choice, amount, how)


def triggers(chance: random.Random, *counts: int) -> list[Step]:
    """Return so many triggers as one of these numbers says."""
    return [Step("trigger")] * chance.choice(counts)


def woven(
    chance: random.Random, steps: Sequence[Step], often: Sequence[int], block: Callable[[], list[Step]]
) -> tuple[Step, ...]:
    """Put blocks of steps between others, as often as one of these numbers says."""
    made = [*steps]
    for _ in range(chance.choice(often)):
        place = chance.randint(0, len(made))
        made[place:place] = block()
    return tuple(made)


@dataclass(frozen=True)
class Setup:
    """Parameters of a run.

    sink: `recorder`, `skipping` or `once`; ahead: minimum of entries for which the next batch is reserved ahead; pace:
    ticks of the driver's thread for each tick of the world, 0: only while the driver waits for it, -1: all at once;
    options: of the first start; before: entries that exist before it; has_values: entries have a field that may not fit
    (mixes.py); limits: sizes of the query's requests (mixes.py), those that are missing are small ones;
    sink_options: more of the exactly-once sink: `transaction` (as within foreachBatch), streamColumn, idColumn,
    waitReplicas; sink_elsewhere: it writes to a server of its own; judges_marks: commit marks are judged
    (verdict.py); nodes: 2: the server is a cluster of two; command_us: microseconds that a command takes; drivers: 2:
    another one reads from the group, too (drivers.py); arguments: most of a request; newer_watch: groups break a WATCH
    (servers.managed); restores: the operator also restores backups, and uses the newer checkpoint (remedies.py).
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
    sink_options: Mapping[str, str] = field(default_factory=dict)
    sink_elsewhere: bool = False
    judges_marks: bool = True
    command_us: int = 50
    drivers: int = 1
    arguments: int = MOST_ARGUMENTS
    newer_watch: bool = False
    nodes: int = 1
    restores: bool = False


@dataclass(frozen=True)
class Plan:
    """A run."""

    setup: Setup
    steps: tuple[Step, ...]

    def without(self, places: range) -> Plan:
        """Return the plan without the steps at these indexes."""
        return replace(self, steps=tuple(step for index, step in enumerate(self.steps) if index not in places))

    def with_options(self, changed: Callable[[Mapping[str, str]], Mapping[str, str]]) -> Plan:
        """Return the plan with changed options of the first start, and of each later one that has its own."""
        steps = [
            replace(step, options=tuple(changed(dict(step.options)).items())) if step.options else step
            for step in self.steps
        ]
        return replace(self, setup=replace(self.setup, options=changed(self.setup.options)), steps=tuple(steps))

    def __str__(self) -> str:
        lines = [str(self.setup), *[f"  {index:>3}  {step}" for index, step in enumerate(self.steps)]]
        return "\n".join(lines)
