"""Predict three runs from the costs, then measure them. Their sizes are not those of the calibration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tools.bench.servers import Running, running
from tools.bench.spark import load
from tools.sizing.costs import Costs
from tools.sizing.measure import drain, steady_trigger
from tools.sizing.model import Machines, Workload, drain_rate, trigger

TOLERANCE = 0.25
_BATCH = 500_000
_TRIGGERS = 4
_STREAMS, _STEP = 200, 10_000


@dataclass(frozen=True)
class Result:
    """A predicted and a measured value."""

    name: str
    unit: str
    predicted: float
    measured: float

    @property
    def ratio(self) -> float:
        return self.predicted / self.measured

    @property
    def within(self) -> bool:
        """Whether the prediction is within the tolerance."""
        return abs(self.ratio - 1) <= TOLERANCE


def predictions(costs: Costs) -> tuple[float, float, float]:
    """Return entries per second of both drains, and ms of a trigger over many streams."""
    machine = Machines(servers=1, cores=2, shared=True)
    group = Workload(rate=0, streams=1, produced=False)
    sink = Workload(rate=0, streams=1, produced=False, sink="exactly-once")
    wide = Workload(rate=0, streams=_STREAMS, produced=False)
    return (
        drain_rate(costs, group, machine, _BATCH),
        drain_rate(costs, sink, machine, _BATCH),
        trigger(costs, wide, machine, _STEP).duration_ms,
    )


def check(costs: Costs) -> Iterator[Result]:
    """Yield each prediction with its measurement on this machine, with local[2]."""
    group, sink, wide = predictions(costs)
    with running("redis-server") as server:
        load(server, "s", (_TRIGGERS + 2) * _BATCH)
        drain(server, _BATCH, _TRIGGERS)  # the JVM compiles its code
        yield Result("drain, group", "entries/s", group, _drain(server, None))
        yield Result("drain, group, exactly-once sink", "entries/s", sink, _drain(server, "exactly-once"))
        measured = steady_trigger(server, _STREAMS, _STEP, 15)
        yield Result(f"trigger of {_STEP:,} entries, {_STREAMS} streams", "ms", wide, measured)


def _drain(server: Running, sink: str | None) -> float:
    return drain(server, _BATCH, _TRIGGERS, sink).rate
