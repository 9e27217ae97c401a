"""The simulation sees what it is for: plans that a whole product passes, and one that is broken somewhere does not.

The plans with kills pass in test_kills.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from spark_streams.base.ids import MAX_ID, MIN_ID
from spark_streams.connector.sink.balance import Balance
from spark_streams.connector.sink.ledger_view import LedgerJoin, LedgerView
from spark_streams.connector.source.group import compare
from spark_streams.connector.source.group.recovery import DataLoss, Finding
from spark_streams.connector.source.group_client import GroupClient
from spark_streams.connector.source.offset import Range
from spark_streams.connector.source.pending_list import acknowledge
from spark_streams.connector.source.trigger import batch_contents, observe
from spark_streams.connector.source.trigger.trigger import Trigger, TriggerResult
from tools.simulation.histories import LENIENT, more, plan
from tools.simulation.in_process.server import ProcessServer
from tools.simulation.patched import product
from tools.simulation.run import run
from tools.simulation.setup import Plan, Step


def killed_anywhere(sink: str = "recorder", **options: str) -> list[Plan]:
    """The first trigger is killed after so many ticks; the sink's last task ends at about the 150th."""
    return [plan(Step("kill", delay), "trigger", "trigger", sink=sink, **options) for delay in range(1, 240, 2)]


ANYTHING = [plan("trigger", more(3), "trigger")]
TRIMMED = [plan("trigger", more(3), Step("trim", amount=0.8), "trigger", **given) for given in ({}, LENIENT)]
MADE_ANEW = [plan("trigger", more(3), Step("remake", how=0.0), "trigger")]


def settles_what_is_under_way(patch: pytest.MonkeyPatch) -> None:
    honest = Trigger.next

    def early(self: Trigger, client: GroupClient, *given: Any) -> TriggerResult:
        found = honest(self, client, *given)
        acknowledge(client, [Range("s:0", MIN_ID, MAX_ID)])
        return found

    patch.setattr(Trigger, "next", early)


def finds_so_many_lost(patch: pytest.MonkeyPatch, count: int) -> None:
    for module in (compare, observe):
        patch.setattr(module, "lost_above", lambda *given: count)


def counts_no_losses(patch: pytest.MonkeyPatch) -> None:
    finds_so_many_lost(patch, 0)


def counts_losses_twice(patch: pytest.MonkeyPatch) -> None:
    honest = DataLoss.report

    def twice(self: DataLoss, *findings: Finding, **how: bool) -> None:
        honest(self, *(replace(one, lost=2 * one.lost) if one.lost else one for one in findings), **how)

    patch.setattr(DataLoss, "report", twice)


def sees_losses_that_are_none(patch: pytest.MonkeyPatch) -> None:
    finds_so_many_lost(patch, 1)


def forgets_what_a_crash_left(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        batch_contents._Choice,
        "_reserved",
        lambda self, contents, quota: (contents, quota),
    )


def compares_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(observe, "compare", lambda *given: None)


def writes_each_run_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LedgerView, "is_untouched", property(lambda self: not self.done))
    patch.setattr(LedgerJoin, "_read_earlier", lambda *given: None)
    patch.setattr(LedgerView, "learn_marks", lambda *given: None)
    patch.setattr(Balance, "commands", lambda *given: [])


@pytest.mark.parametrize(
    ("breaks", "plans", "kinds"),
    [
        (settles_what_is_under_way, ANYTHING, {"early"}),
        (counts_no_losses, TRIMMED, {"silent", "uncounted"}),
        (counts_losses_twice, TRIMMED, {"counted too much"}),
        (sees_losses_that_are_none, ANYTHING, {"false alarm"}),
        (forgets_what_a_crash_left, killed_anywhere(), {"lost", "pending"}),
        (compares_nothing, MADE_ANEW, {"silent"}),
        (writes_each_run_again, killed_anywhere(sink="once"), {"twice"}),
    ],
)
def test_a_broken_product_is_found(
    monkeypatch: pytest.MonkeyPatch,
    breaks: Callable[[pytest.MonkeyPatch], None],
    plans: list[Plan],
    kinds: set[str],
) -> None:
    server = ProcessServer()
    with product(server), server.client(decode_responses=True) as client:
        assert not run(server, client, plans[0]).failures
        breaks(monkeypatch)
        found = (failure.kind.split(" | ")[0] for one in plans for failure in run(server, client, one).failures)
        assert any(kind in kinds for kind in found), f"none of {kinds}"
