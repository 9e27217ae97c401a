"""Streams that leave the list of a query and come back: nothing of them is read meanwhile, and all of it afterwards."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import redis

from spark_streams.connector.options.source_options import SourceOptions
from tools.servers.server import Server
from tools.simulation.in_process.server import ProcessServer
from tools.simulation.patched import product
from tools.simulation.run import Outcome, run
from tools.simulation.setup import NEVER_AHEAD, Plan, Setup, Step

TO_THE_SECOND = Step("add", choice=0.9, amount=0.3)
WITHOUT_THE_SECOND, WITH_IT_AGAIN = Step("leave_out", choice=0.9), Step("put_back", how=0.1)
AWAY_FOR_A_WHILE = ("trigger", TO_THE_SECOND, "trigger", "trigger", WITHOUT_THE_SECOND, TO_THE_SECOND, "trigger",
                    "trigger", WITH_IT_AGAIN, "trigger", "trigger")  # fmt: skip


def of_two(*steps: Step | str, **options: str) -> Plan:
    """A query of two streams, the first one with two entries."""
    given = {"startingOffsets": "earliest", "streams": "s:0,s:1", **options}
    setup = Setup(7, 2, "recorder", NEVER_AHEAD, 0, given, before=2, judges_marks=False)
    return Plan(setup, tuple(Step(one) if isinstance(one, str) else one for one in steps))


def played(server: Server, client: redis.Redis, plan: Plan) -> tuple[Outcome, str]:
    """What a plan comes to, and its story."""
    lines: list[str] = []
    with product(server):
        return run(server, client, plan, lines.append), "\n".join(lines)


def test_a_stream_is_read_before_it_leaves_and_after_it_is_back(server: Server, client: redis.Redis) -> None:
    """And not in between: the batches say so."""
    outcome, story = played(server, client, of_two(*AWAY_FOR_A_WHILE))
    assert outcome.failures == []
    assert [line.strip() for line in story.splitlines() if " batch " in line] == [
        "batch 0: 1, 2", "batch 1: 3, 4, 5", "batch 2: 6, 7, 8",
    ]  # fmt: skip
    left, back = story.index("leave_out"), story.index("put_back")
    assert left < back < story.index("batch 2")


def test_the_end_of_a_plan_reads_all_streams_again(server: Server, client: redis.Redis) -> None:
    """Also those of the first list, which no step has put back."""
    outcome, story = played(server, client, of_two("trigger", WITHOUT_THE_SECOND, TO_THE_SECOND, "trigger"))
    assert outcome.failures == []
    assert "batch 1: 3, 4, 5" in story[story.index("the end") :]


def test_the_last_stream_stays_in_the_list(server: Server, client: redis.Redis) -> None:
    outcome, story = played(server, client, of_two("trigger", *[Step("leave_out", amount=0.9)] * 3, "trigger"))
    assert outcome.failures == []
    assert story.count("'streams': 's:1'") == 1
    assert "'streams': ''" not in story


def test_deliveries_are_limited_for_a_while(server: Server, client: redis.Redis) -> None:
    """A run without maxDeliveries follows one that has it, and the other way round."""
    steps = ("trigger", "deliver_often", "trigger", "deliver_seldom", "trigger")
    outcome, story = played(server, client, of_two(*steps, maxDeliveries="2", deadLetterStream="dead"))
    starts = [line for line in story[: story.index("the end")].splitlines() if "start:" in line]
    assert outcome.failures == []
    assert ["maxDeliveries" in line for line in starts] == [True, False, True]


def test_a_batch_of_a_stream_that_is_not_in_the_list_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product that keeps its first list."""
    server, honest = ProcessServer(), SourceOptions.parse

    def keeping_its_list(given: Mapping[str, str]) -> SourceOptions:
        return honest({**given, "streams": "s:0,s:1"})

    monkeypatch.setattr(SourceOptions, "parse", keeping_its_list)
    with server.client(decode_responses=True) as client:
        outcome, _ = played(server, client, of_two(*AWAY_FOR_A_WHILE))
    assert [failure.kind for failure in outcome.failures] == ["not in the list | strict plain"]


def test_a_stream_that_a_pattern_leaves_out_is_not_read_although_the_checkpoint_has_it(
    server: Server, client: redis.Redis
) -> None:
    """It is read again, from where the query has left it, when it is named again."""
    add = Step("add", choice=0.9, amount=0.3)
    steps = (add, "trigger", Step("repattern", choice=0.9, how=0.9), add, "trigger", Step("add", amount=0.1), "trigger")
    setup = Setup(7, 4, "recorder", NEVER_AHEAD, 0, {"startingOffsets": "earliest", "streams": "s:0,s:3"}, before=2)
    back = (Step("repattern"), Step("put_back"), "trigger")
    plan = Plan(setup, tuple(Step(one) if isinstance(one, str) else one for one in (*steps, *back)))
    outcome, story = played(server, client, plan)
    assert outcome.failures == []
    assert [line.strip() for line in story.splitlines() if " batch " in line] == [
        "batch 0: 1, 2, 3, 4, 5", "batch 1: 9", "batch 2: 6, 7, 8",
    ]  # fmt: skip
