"""The simulation: entries are conserved, failovers are caught up, limits are named, a seed repeats a run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.sizing.costs import COSTS
from tools.sizing.model import Machines, Workload
from tools.sizing.report import row_of_simulation
from tools.sizing.simulation import Failover, Scenario, random_failovers, scenarios, simulate

CALM = Scenario(Workload(rate=400_000, streams=20), Machines(servers=4, cores=8), seconds=30.0)
FAILOVER = replace(CALM, failovers=(Failover(shard=1, start=8.0, seconds=5.0),))
SCENARIOS = {
    "calm": CALM,
    "failover": FAILOVER,
    "overloaded": replace(CALM, workload=Workload(rate=4_000_000)),
    "two queries": replace(FAILOVER, queries=2),
    "interval": replace(FAILOVER, interval=2.0),
    "noAck": replace(FAILOVER, workload=Workload(rate=400_000, mode="noAck")),
}


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_entries_are_committed_or_in_the_backlog(scenario: Scenario) -> None:
    outcome = simulate(COSTS, scenario)
    assert outcome.produced == pytest.approx(scenario.workload.rate * scenario.seconds, rel=0.02)
    assert outcome.committed > 0
    assert outcome.committed + outcome.backlog == pytest.approx(outcome.produced)


def test_servers_are_used_as_the_model_says() -> None:
    """100,000 entries per second and shard × 3 µs, and 400,000 × 3 µs on eight cores."""
    outcome = simulate(COSTS, CALM)
    assert outcome.use["server thread"] == pytest.approx(0.3, rel=0.05)
    assert outcome.use["executor cores"] == pytest.approx(400_000 * 3e-6 / 8, rel=0.05)
    assert outcome.use["driver"] == pytest.approx(0.1, rel=0.05)
    assert outcome.stable


def test_a_seed_repeats_a_run_and_another_seed_does_not() -> None:
    assert simulate(COSTS, FAILOVER) == simulate(COSTS, FAILOVER)
    assert simulate(COSTS, FAILOVER) != simulate(COSTS, replace(FAILOVER, seed=2))


def test_the_backlog_of_a_failover_is_read_afterwards() -> None:
    calm, outcome = simulate(COSTS, CALM), simulate(COSTS, FAILOVER)
    (recovery,) = outcome.recoveries
    assert 0 < recovery.catch_up < 10
    assert recovery.peak > 5 * 400_000 * 0.9  # one query waits for the shard: all shards have a backlog
    assert outcome.lag_p99 > 4 > calm.lag_p99
    assert outcome.peak_memory > 2 * calm.peak_memory
    assert outcome.stable


def test_with_a_query_for_each_shard_only_one_shard_waits() -> None:
    whole, divided = simulate(COSTS, FAILOVER), simulate(COSTS, replace(FAILOVER, queries=4))
    assert divided.recoveries[0].peak < whole.recoveries[0].peak / 2
    assert divided.lag_p50 < whole.lag_p50


def test_pending_entries_of_the_shard_are_read_again() -> None:
    """Failovers at many moments of a trigger: at least one begins while the tasks read."""
    starts = [8.0 + number * 0.06 for number in range(12)]
    runs = [replace(CALM, seconds=16.0, failovers=(Failover(0, start, 1.0),)) for start in starts]
    counts = [simulate(COSTS, run).read_twice for run in runs]
    assert max(counts) > 0
    assert max(counts) < 400_000 / 4  # of one shard's trigger only


def test_more_spare_capacity_catches_up_sooner() -> None:
    few, many = (simulate(COSTS, replace(FAILOVER, machines=Machines(4, cores))) for cores in (2, 16))
    assert many.recoveries[0].catch_up < few.recoveries[0].catch_up


@pytest.mark.parametrize(
    ("limit", "scenario"),
    [
        ("server thread", replace(CALM, workload=Workload(rate=1_600_000), machines=Machines(4, 100))),
        ("executor cores", replace(CALM, machines=Machines(servers=20, cores=1))),
        ("driver", replace(CALM, workload=Workload(rate=6_000_000), machines=Machines(100, 1000))),
        ("network", replace(CALM, machines=Machines(4, 8, network=1.5e7))),
    ],
)
def test_the_limit_is_named_and_the_backlog_grows(limit: str, scenario: Scenario) -> None:
    outcome = simulate(COSTS, scenario)
    assert outcome.limit == limit
    assert not outcome.stable
    assert f"{limit}: the backlog grows" in row_of_simulation(scenario, outcome)


def test_failovers_have_the_seed_and_the_length_that_were_asked_for() -> None:
    away = random_failovers(servers=10, count=3, seconds=120, seed=4)
    assert away == random_failovers(servers=10, count=3, seconds=120, seed=4)
    assert all(5 <= failover.seconds <= 15 and 0 <= failover.shard < 10 for failover in away)


def test_the_scenarios_cover_both_rates_and_three_numbers_of_shards() -> None:
    runs = scenarios(Workload(0, streams=5), cores=None, queries=[1, 10], interval=0, seconds=60, seed=1)
    assert {(run.workload.rate, run.machines.servers, run.queries) for run in runs} == {
        (rate, servers, queries) for rate in (1e6, 1e7) for servers in (10, 30, 100) for queries in (1, 10)
    }
    assert all(run.workload.streams == 5 * run.machines.servers for run in runs)
