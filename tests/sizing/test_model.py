"""The model: cases that were computed by hand, limits, and the directions in which results may change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sizing.costs import COSTS
from tools.sizing.check import predictions
from tools.sizing.costs import costs_as_json, read_costs
from tools.sizing.model import (
    Machines,
    Workload,
    catch_up_seconds,
    drain_rate,
    memory_bytes,
    plan,
    server_us,
    tasks_us,
    trigger,
)

BACKLOG = Workload(rate=0, produced=False)
SHARED = Machines(servers=1, cores=2, shared=True)


def test_a_drain_is_limited_by_the_thread_of_the_server() -> None:
    """500,000 entries × 2 µs × 1.25 is 1,250 ms; the five tasks on two cores add 20 ms to a trigger of 100 ms."""
    step = trigger(COSTS, BACKLOG, SHARED, 500_000)
    assert (step.limit, step.work_ms, step.fixed_ms) == ("server", 1250.0, 120.0)
    assert drain_rate(COSTS, BACKLOG, SHARED, 500_000) == pytest.approx(500_000 / 1.370)


def test_one_task_waits_for_the_server_and_decodes_in_turns() -> None:
    """10,000 entries × (2 + 1) µs is 30 ms; 199 more streams add 99.5 ms."""
    step = trigger(COSTS, replace(BACKLOG, streams=200), SHARED, 10_000)
    assert (step.limit, step.work_ms, step.fixed_ms) == ("tasks", 30.0, 199.5)


def test_on_shared_cores_all_processes_together_can_be_the_limit() -> None:
    """Server 0.5, tasks 1, no driver: 1.5 µs on two cores × 1.25 are more than the server's 0.5 µs × 1.25."""
    workload = replace(BACKLOG, mode="noAck")
    assert trigger(COSTS, workload, SHARED, 500_000).limit == "cores"
    assert trigger(COSTS, workload, replace(SHARED, shared=False), 500_000).limit == "tasks"


def test_a_narrow_network_is_the_limit() -> None:
    step = trigger(COSTS, replace(BACKLOG, value_bytes=940), Machines(cores=16, network=1e8), 1_000_000)
    assert step.limit == "network"
    assert step.work_ms == pytest.approx(10_000)  # 1,000 bytes an entry at 100 MB/s


def test_one_driver_is_the_limit_of_many_servers_and_cores() -> None:
    assert trigger(COSTS, BACKLOG, Machines(servers=100, cores=1000), 50_000_000).limit == "driver"


def test_a_sink_adds_to_the_server_and_to_the_tasks() -> None:
    once, plain = replace(BACKLOG, sink="exactly-once"), replace(BACKLOG, sink="at-least-once")
    assert [server_us(COSTS, workload) for workload in (BACKLOG, plain, once)] == [2.0, 3.0, 3.5]
    assert [tasks_us(COSTS, workload) for workload in (BACKLOG, plain, once)] == [1.0, 1.5, 2.0]
    assert trigger(COSTS, once, SHARED, 100).fixed_ms == 150.0


def test_memory_counts_values_overhead_and_pending_entries() -> None:
    assert memory_bytes(COSTS, Workload(rate=0, value_bytes=60), 1000, 100) == 1000 * 100 + 100 * 80
    assert memory_bytes(COSTS, Workload(rate=0, value_bytes=60, mode="noAck"), 1000, 100) == 1000 * 100


def test_a_backlog_shrinks_by_the_capacity_that_is_free() -> None:
    assert catch_up_seconds(rate=100, capacity=200, away=10) == 10
    assert catch_up_seconds(rate=100, capacity=100, away=10) == float("inf")


def test_a_plan_keeps_the_utilisation() -> None:
    """10⁶ entries × 3 µs of the servers, half used: six servers; with 1 µs of tasks: eight cores."""
    wanted = plan(COSTS, Workload(rate=1e6), utilisation=0.5, interval=1.0, stored_seconds=60)
    assert (wanted.servers, wanted.queries, wanted.cores, wanted.server_utilisation) == (6, 1, 8, 0.5)
    assert wanted.driver_utilisation == 0.25
    assert wanted.memory_bytes > 60e6 * 140 / 6


def test_queries_divide_the_work_of_the_driver() -> None:
    """10⁷ entries × 0.25 µs are 2.5 drivers: five at half load."""
    wanted = plan(COSTS, Workload(rate=1e7, streams=1000), utilisation=0.5)
    assert (wanted.queries, wanted.driver_utilisation) == (5, 0.5)
    assert plan(COSTS, Workload(rate=1e7, mode="noAck"), utilisation=0.5).queries == 1


def test_without_an_interval_a_trigger_has_what_arrived_during_the_previous_trigger() -> None:
    workload = Workload(rate=5e5)
    wanted = plan(COSTS, workload, utilisation=0.5)
    machines = Machines(wanted.servers, wanted.cores)
    entries = workload.rate * wanted.trigger_ms / 1000
    assert wanted.trigger_ms == pytest.approx(
        trigger(COSTS, workload, machines, entries, wanted.cores).duration_ms, rel=0.01
    )


@given(st.integers(1, 10**7), st.integers(1, 10**7), st.sampled_from(["group", "noAck"]))
def test_more_entries_take_longer_per_trigger(first: int, second: int, mode: str) -> None:
    """Per number of tasks: a second task reads beside the first one."""
    low, high = sorted((first, second))
    workload = replace(BACKLOG, mode=mode)
    assert trigger(COSTS, workload, SHARED, low, 4).duration_ms <= trigger(COSTS, workload, SHARED, high, 4).duration_ms


@given(st.floats(1e3, 1e7), st.integers(1, 50), st.integers(1, 200))
def test_more_machines_never_take_longer(rate: float, servers: int, cores: int) -> None:
    workload = Workload(rate=rate)
    durations = [
        trigger(COSTS, workload, Machines(servers * factor, cores * factor), rate, cores).work_ms for factor in (1, 2)
    ]
    assert durations[1] <= durations[0]


@given(st.floats(1e3, 1e7), st.floats(1e3, 1e7))
def test_a_higher_rate_needs_as_many_machines_or_more(first: float, second: float) -> None:
    low, high = (plan(COSTS, Workload(rate=rate)) for rate in sorted((first, second)))
    assert low.servers <= high.servers
    assert low.cores <= high.cores


def test_costs_are_written_and_read(tmp_path: Path) -> None:
    file = tmp_path / "costs.json"
    file.write_text(costs_as_json(COSTS), encoding="utf-8")
    assert read_costs(file) == COSTS


def test_the_reference_costs_predict_the_runs_of_the_documentation() -> None:
    """The table in docs/internals/performance.md has these predictions."""
    page = Path(__file__).resolve().parents[2] / "docs" / "internals" / "performance.md"
    text = page.read_text(encoding="utf-8")
    group, sink, many = predictions(read_costs())
    for value in (f"{group:,.0f} entries/s", f"{sink:,.0f} entries/s", f"{many:,.0f} ms"):
        assert value in text
