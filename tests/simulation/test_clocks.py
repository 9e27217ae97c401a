"""The server's clock is its own in a plan, and moves: what the engine says then, and that the query reads on."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import pytest

from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Connection
from tools.simulation.histories import LENIENT, POISON, more, plan
from tools.simulation.in_process.core import Core
from tools.simulation.in_process.patches import on_core
from tools.simulation.in_process.server import ProcessServer
from tools.simulation.mixes import seconds_set_back
from tools.simulation.patched import product
from tools.simulation.plan import make
from tools.simulation.run import run
from tools.simulation.setup import Plan, Step

SERVER = ProcessServer()
ADDRESS = Address.parse(SERVER.url)
_TRIGGERS = 150  # ticks of two triggers


@pytest.fixture
def core() -> Core:
    return ProcessServer().core


def server_ms(server: Connection) -> int:
    seconds, microseconds = server.execute("TIME")
    return int(seconds) * 1000 + int(microseconds) // 1000


@pytest.mark.parametrize("seconds", [-2, -60, 2, 60])
def test_the_clock_of_the_server_moves_and_that_of_the_driver_does_not(core: Core, seconds: int) -> None:
    """TIME and idle follow; idle is never negative, and IDs still rise."""
    with on_core(core), core.clock.in_charge(), Connection(ADDRESS) as server:
        first = server.execute("XADD", "s", "*", "n", 1)
        server.execute("XGROUP", "CREATE", "s", "g", "0")
        server.execute("XREADGROUP", "GROUP", "g", "bob", "STREAMS", "s", ">")
        before, driver = server_ms(server), time.time()
        core.clock.move_server(seconds)
        assert server_ms(server) - before == pytest.approx(1000 * seconds, abs=2)
        assert time.time() - driver == pytest.approx(0, abs=0.01)
        [[_, _, idle, _]] = server.execute("XPENDING", "s", "g", "-", "+", 10)
        assert idle == pytest.approx(max(1000 * seconds, 0), abs=2)
        later = server.execute("XADD", "s", "*", "n", 2)
        assert [int(part) for part in later.split(b"-")] > [int(part) for part in first.split(b"-")]


def test_a_blocked_command_waits_for_the_clock_of_the_server(core: Core) -> None:
    with on_core(core), core.clock.in_charge(), Connection(ADDRESS) as server:
        core.clock.move_server(-60)
        began = time.monotonic()
        assert server.execute("XREAD", "BLOCK", 4_000, "STREAMS", "s", "$") is None
        assert time.monotonic() - began == pytest.approx(4, abs=0.1)


@pytest.mark.parametrize(("amount", "seconds"), [(0.1, 2), (0.9, 60), (0.99, 3600)])
def test_a_plan_has_the_clock_go_back_and_ahead(amount: float, seconds: int) -> None:
    """By as much as the step says. A plan without such a step has one clock."""
    for name, moved in [("clock_back", -seconds), ("clock_ahead", seconds)]:
        with product(SERVER), SERVER.client(decode_responses=True) as client:
            run(SERVER, client, plan(Step(name, amount=amount)))
            assert SERVER.core.clock.server_ahead == moved * 1_000_000_000
            assert seconds_set_back(SERVER) == max(-moved, 0)
            run(SERVER, client, plan("trigger"))
            assert SERVER.core.clock.server_ahead == 0


def test_plans_that_name_no_clock_stay_as_they_are() -> None:
    """And those with clocks have the steps of the power, at both paces."""
    kinds = {"clock_back", "clock_ahead", "fail_over_apart", "promote_apart", "restore_apart"}
    for seed in range(1, 40):
        assert not kinds & {step.kind for step in make(seed).steps}
        assert make(seed).setup.command_us == 50
    moved = [make(seed, "clock") for seed in range(1, 40)]
    assert all(kinds & {step.kind for step in one.steps} for one in moved)
    assert {one.setup.command_us for one in moved} == {50, 2_000}


def test_what_is_reserved_ahead_when_the_clock_goes_back_is_no_loss() -> None:
    """The shortest plan: alone in its group, a query stops with its next batch reserved ahead."""
    one = plan("trigger", Step("clock_back", amount=0.1), maxEntriesPerTrigger="1")
    one = replace(one, setup=replace(one.setup, ahead=1, pace=-1, command_us=2_000))
    with product(SERVER), SERVER.client(decode_responses=True) as client:
        assert not run(SERVER, client, one).failures


@pytest.mark.parametrize("kind", ["clock_back", "clock_ahead", "fail_over_apart", "restore_apart"])
@pytest.mark.parametrize("options", [{}, LENIENT, POISON], ids=["strict", "lenient", "poison"])
def test_a_clock_that_moves_at_any_moment_loses_nothing_and_repeats_nothing(
    kind: str, options: Mapping[str, str]
) -> None:
    """While entries are reserved ahead, in flight, or read and not acknowledged yet; and with a kill after it."""
    failing: dict[str, Plan] = {}
    with product(SERVER), SERVER.client(decode_responses=True) as client:
        for one in moving(kind, options):
            for failure in run(SERVER, client, one).failures[:1]:
                failing.setdefault(failure.kind, one)
    assert not failing, "\n".join(f"{found}\n{one}" for found, one in failing.items())


def moving(kind: str, options: Mapping[str, str]) -> list[Plan]:
    """Two triggers amid which the clock moves, and two after it; some of the batches are reserved ahead."""
    plans = []
    for delay in range(1, _TRIGGERS, 12):
        moves = Step(kind, delay, choice=0.1, amount=0.1)
        for pace, more_steps in [(-1, ["kill"]), (1, [])]:
            one = plan("backup", more(7), moves, "trigger", "trigger", *more_steps, "trigger", more(2), "trigger",
                       maxEntriesPerTrigger="4", **options)  # fmt: skip
            plans.append(replace(one, setup=replace(one.setup, ahead=1, pace=pace, command_us=2_000)))
    return plans
