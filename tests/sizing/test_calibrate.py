"""Costs are derived from measurements, and predictions are compared with runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tools.sizing.calibrate import Measured, costs_of
from tools.sizing.check import Result
from tools.sizing.measure import Run
from tools.sizing.model import Machines, Workload, trigger

SMALL = Run(triggers=10, entries=3_000_000, elapsed=8.2e6, server=6.0e6, driver=0.6e6, tasks=6.0e6)
LARGE = Run(triggers=2, entries=1_800_000, elapsed=4.28e6, server=3.6e6, driver=0.36e6, tasks=2.4e6)
SLOWER = (
    replace(SMALL, elapsed=13.2e6, server=10.5e6, tasks=9.0e6),
    replace(LARGE, elapsed=6.68e6, server=6.3e6, tasks=4.2e6),
)
MEASURED = Measured(
    add_us=1.0,
    entry_bytes=20.0,
    pending_bytes=80.0,
    group=(SMALL, LARGE),
    no_ack=(SMALL, LARGE),
    at_least_once=SLOWER,
    exactly_once=SLOWER,
    few_entries=100.0,
    nine_tasks=180.0,
    one_task=100.0,
    wide=199.8,
    narrow=100.0,
)


def test_costs_are_differences_and_means_of_the_runs() -> None:
    """Tasks: 600 ms for 300,000 entries and 1,200 ms for 900,000 are 1 µs per entry. Server: 9.6 s for 4.8 M."""
    costs = costs_of(MEASURED, "computed", 2)
    assert (costs.server_group_us, costs.driver_us) == pytest.approx((2.0, 0.2))
    assert costs.read_us == pytest.approx(1.0)
    assert (costs.server_exactly_once_us, costs.exactly_once_us) == pytest.approx((1.5, 1.0))
    assert (costs.stream_ms, costs.task_ms) == pytest.approx((0.2, 20.0))


def test_the_sink_adds_what_its_triggers_take_longer_without_entries() -> None:
    """820 and 2,140 ms per trigger: 160 ms without entries. With the sink 1,320 and 3,340 ms: 310 ms."""
    assert costs_of(MEASURED, "computed", 2).sink_trigger_ms == pytest.approx(150.0)


def test_the_model_explains_the_runs_from_which_its_costs_come() -> None:
    costs = costs_of(MEASURED, "computed", 2)
    workload, machine = Workload(rate=0, produced=False), Machines(servers=1, cores=2, shared=True)
    for run in (SMALL, LARGE):
        step = trigger(costs, workload, machine, run.entries / run.triggers)
        assert step.duration_ms == pytest.approx(run.elapsed / 1000 / run.triggers, rel=0.05)


@pytest.mark.parametrize(("predicted", "within"), [(74, False), (76, True), (124, True), (126, False)])
def test_a_prediction_may_differ_by_a_quarter(predicted: float, within: bool) -> None:
    assert Result("drain", "entries/s", predicted, 100.0).within is within
