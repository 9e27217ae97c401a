"""Two drivers on one group: what must not happen is found, what may happen is not, and the product passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from spark_streams.base.ids import MAX_ID, MIN_ID
from spark_streams.connector.source.group.streams import StreamSet
from spark_streams.connector.source.group_client import GroupClient, Membership
from spark_streams.connector.source.offset import Range
from spark_streams.connector.source.partitioning import ALL, Part
from spark_streams.connector.source.pending_list import acknowledge
from spark_streams.connector.source.query.planning import ReplayedBatch
from spark_streams.connector.source.trigger.trigger import Trigger, TriggerResult
from tools.simulation.drivers import DRIVEN
from tools.simulation.in_process.server import ProcessServer
from tools.simulation.patched import product
from tools.simulation.plan import make
from tools.simulation.run import run
from tools.simulation.setup import NEVER_AHEAD, Plan, Setup, Step

SERVER = ProcessServer()
ANN, BEN = 0.1, 0.9
GIVEN = {"streams": "s:0", "startingOffsets": "earliest"}
CLAIMS = {"claimIdle": "1ms"}
IDLE = Step("drive_wait", amount=0.5)
FIVE_MORE = Step("drive_add", amount=0.6)


def drive(who: float, ticks: int = 0, at: str = "") -> Step:
    return Step("drive", ticks, who, at=at)


def dies(who: float) -> Step:
    return Step("drive_kill", choice=who)


def crashes(who: float, is_written: bool) -> Step:
    """In its next batch: after its first task, or after the sink has it."""
    return Step("drive_crash", choice=who, how=0.9 if is_written else 0.1)


def plan(*steps: Step, sink: str = "recorder", **options: str) -> Plan:
    """One stream with five entries. The second driver claims what is idle."""
    setup = Setup(7, 1, sink, NEVER_AHEAD, 0, {**GIVEN, **options}, before=5, chunk=1, drivers=2)
    ben = Step("drive_options", choice=BEN, options=tuple({**GIVEN, **CLAIMS, **options}.items()))
    return Plan(setup, (ben, *steps))


def kinds_of(*plans: Plan) -> set[str]:
    with product(SERVER), SERVER.client(decode_responses=True) as client:
        return {failure.kind for one in plans for failure in run(SERVER, client, one).failures[:1]}


def dies_anywhere(step: int = 3) -> list[Plan]:
    """The first driver dies after so many ticks, and the second one claims; the first one comes back."""
    return [
        plan(drive(ANN, ticks), dies(ANN), IDLE, drive(BEN), drive(ANN), drive(BEN)) for ticks in range(1, 120, step)
    ]


@pytest.mark.parametrize("sink", ["recorder", "once"])
@pytest.mark.parametrize("options", [{}, {"failOnDataLoss": "false"}], ids=["strict", "lenient"])
def test_what_was_written_and_not_acknowledged_may_come_again_if_another_driver_claims_it(
    sink: str, options: dict[str, str]
) -> None:
    """The sink has the batch, and its driver dies before it is committed."""
    assert not kinds_of(plan(crashes(ANN, True), drive(ANN), IDLE, drive(BEN), drive(BEN), sink=sink, **options))


@pytest.mark.parametrize("options", [{}, {"failOnDataLoss": "false"}], ids=["strict", "lenient"])
@pytest.mark.parametrize("at_last", [[], [drive(ANN)]], ids=["at the end", "at once"])
def test_a_batch_that_was_claimed_before_it_was_written_is_not_read_again(
    options: dict[str, str], at_last: Sequence[Step]
) -> None:
    """Its driver was alone when it logged the batch, and comes back when the other one has written the entries."""
    steps = [crashes(ANN, False), drive(ANN), IDLE, drive(BEN), drive(BEN), *at_last]
    assert not kinds_of(plan(*steps, **options))


@pytest.mark.parametrize("ticks", [0, 40])
def test_a_claim_takes_nothing_of_a_driver_that_comes_back_just_before_it(ticks: int) -> None:
    """The second one stands still between its look at the lease and XCLAIM."""
    steps = [crashes(ANN, False), drive(ANN), IDLE, drive(BEN, at="XCLAIM"), drive(ANN, ticks), drive(BEN)]
    assert not kinds_of(plan(*steps, drive(ANN)))


def test_a_driver_that_dies_anywhere_loses_nothing_to_the_other_one() -> None:
    assert not kinds_of(*dies_anywhere())


def settles_what_is_under_way(patch: pytest.MonkeyPatch) -> None:
    honest = Trigger.next

    def early(self: Trigger, client: GroupClient, *given: Any) -> TriggerResult:
        found = honest(self, client, *given)
        acknowledge(GroupClient(client.server, Membership("g", "ann")), [Range("s:0", MIN_ID, MAX_ID)])
        return found

    patch.setattr(Trigger, "next", early)


def sees_no_lease(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StreamSet, "live", lambda *given: set())


def replays_from_the_stream(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReplayedBatch, "_new", lambda self, entries, end, look: ([Part(entries, ALL)], None))


BOTH_RUN = [plan(drive(ANN, ticks), IDLE, drive(BEN), drive(ANN)) for ticks in range(10, 90, 10)]


@pytest.mark.parametrize(
    ("breaks", "plans", "kinds"),
    [
        (settles_what_is_under_way, dies_anywhere(9), {"early", "lost"}),
        (sees_no_lease, BOTH_RUN, {"claimed from a running query"}),
        (replays_from_the_stream, dies_anywhere(9), {"twice", "false alarm"}),
    ],
)
def test_a_broken_product_is_found(
    monkeypatch: pytest.MonkeyPatch,
    breaks: Callable[[pytest.MonkeyPatch], None],
    plans: Sequence[Plan],
    kinds: set[str],
) -> None:
    breaks(monkeypatch)
    assert kinds & {kind.split(" | ")[0] for kind in kinds_of(*plans)}


def test_a_plan_with_a_second_driver_has_only_its_steps() -> None:
    """It replaces the plan, and other plans have one driver."""
    for seed in range(1, 60):
        two = make(seed, "driver")
        assert two.setup.drivers == 2
        assert {step.kind for step in two.steps} <= {*DRIVEN}
        assert make(seed).setup.drivers == 1
