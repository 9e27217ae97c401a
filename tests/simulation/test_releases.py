"""Entries that other consumers release (XNACK): plans have them, and a query that does not read them is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from spark_streams.connector.source.pending import claim
from spark_streams.connector.source.trigger.trigger import Trigger
from spark_streams.connector.wire.xinfo import RELEASED_IDLE
from tests.simulation.test_sees import more, plan
from tools.simulation.in_process.server import ProcessServer
from tools.simulation.options import STREAMS
from tools.simulation.patched import product
from tools.simulation.plan import make
from tools.simulation.run import run
from tools.simulation.setup import Plan, Step

SERVER = ProcessServer()
RELEASED = plan("trigger", more(3), Step("read", amount=0.9), Step("release", amount=0.9), "trigger", "trigger")


@pytest.fixture
def failures() -> Iterator[Callable[[Plan], set[str]]]:
    """A function that runs a plan, and returns the kinds of its failures without details."""
    with product(SERVER), SERVER.client(decode_responses=True) as client:
        yield lambda given: {one.kind.split(" | ")[0] for one in run(SERVER, client, given).failures}


def test_plans_release_entries_and_the_query_claims_them() -> None:
    told: list[str] = []
    with product(SERVER), SERVER.client(decode_responses=True) as client:
        for made in [made for made in map(make, range(1, 400)) if any(step.kind == "release" for step in made.steps)]:
            run(SERVER, client, made, told.append)
            if any(f"XCLAIM {name} g spark {RELEASED_IDLE} " in line for line in told for name in STREAMS):
                return
    pytest.fail("no query claims what was released")


@pytest.mark.parametrize("sink", ["recorder", "once"])
def test_a_kill_at_any_moment_reads_released_entries_once(failures: Callable[[Plan], set[str]], sink: str) -> None:
    steps = RELEASED.steps
    for after in range(1, 90, 6):
        killed = plan(*steps[:4], Step("kill", after), *steps[4:], sink=sink)
        assert not failures(killed), f"killed after {after} ticks"


def claims_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Trigger, "_may_claim", lambda self, state: False)


def finds_no_holders(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claim._Claiming, "_with_released", lambda *given: [])


@pytest.mark.parametrize("breaks", [claims_nothing, finds_no_holders])
def test_a_broken_product_is_found(
    monkeypatch: pytest.MonkeyPatch,
    failures: Callable[[Plan], set[str]],
    breaks: Callable[[pytest.MonkeyPatch], None],
) -> None:
    assert not failures(RELEASED)
    breaks(monkeypatch)
    assert failures(RELEASED) & {"lost", "silent"}
