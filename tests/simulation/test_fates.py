"""What an operator changes between two runs, a cluster, options of the sink, and the pairs of finding and remedy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import redis

from spark_streams.connector.errors import DataLossError, LedgerError
from tools.simulation.in_process.cluster import ClusterServer
from tools.simulation.in_process.server import ProcessServer
from tools.simulation.met import LENIENT, finding_of, named_in, pair, possible, report
from tools.simulation.patched import product
from tools.simulation.run import Outcome, run
from tools.simulation.setup import NEVER_AHEAD, Plan, Setup, Step

LIST = {"startingOffsets": "earliest", "streams": "s:0,s:1"}
MISFIT = Step("misfit", amount=0.1)


def played(*steps: Step | str, options: Mapping[str, str] = LIST, **setup: object) -> tuple[Outcome, str]:
    """What a plan of two streams comes to, and its story."""
    lines: list[str] = []
    made = Setup(7, 2, "recorder", NEVER_AHEAD, 0, options, before=2)
    plan = Plan(replace(made, **setup), tuple(Step(one) if isinstance(one, str) else one for one in steps))  # type: ignore[arg-type]
    server = ProcessServer()
    with product(server), server.client(decode_responses=True) as client:
        return run(server, client, plan, lines.append), "\n".join(lines)


def batches(story: str) -> list[str]:
    return [line.strip() for line in story.splitlines() if line.startswith("   batch ")]


# -- changes between two runs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [0.1, 0.9], ids=["group", "consumer"])
def test_a_checkpoint_is_refused_under_another_name_and_goes_on_under_its_own(how: float) -> None:
    outcome, story = played("trigger", Step("regroup", how=how), "add", "trigger", "trigger")
    assert outcome.failures == []
    assert outcome.met == {"OffsetError | set the options back": 1}
    assert batches(story) == ["batch 0: 1, 2", "batch 1: 3"]


def test_another_start_is_only_for_groups_that_do_not_exist_yet() -> None:
    """The second stream is deleted before a new start; the first one goes on where it was."""
    second = Step("add", choice=0.9, amount=0.1)
    steps = (second, "trigger", Step("leave_out", choice=0.9), "trigger", Step("destroy", choice=0.9))
    outcome, story = played(*steps, Step("begin_otherwise", how=0.5), "put_back", "trigger", second, "add", "trigger")
    assert outcome.failures == []
    assert "'startingOffsets': 'latest'" in story
    assert batches(story) == ["batch 0: 1, 2, 3", "batch 1: 4, 5"]


def test_a_pattern_finds_what_the_list_had_and_more() -> None:
    steps = ("trigger", Step("repattern"), Step("add", choice=0.9, amount=0.1), "trigger", "trigger")
    outcome, story = played(*steps, options={**LIST, "streams": "s:0"})
    assert outcome.failures == []
    assert batches(story) == ["batch 0: 1, 2", "batch 1: 3"]


def test_an_entry_waits_for_hours() -> None:
    """And not for less, also if the query was killed meanwhile."""
    options = {**LIST, "mode": "DEADLETTER", "deadLetterStream": "dead", "retryDelay": "1m,2h"}
    hour, minute = Step("wait", how=0.6), Step("wait", how=0.3)
    steps = (
        MISFIT,
        "trigger",
        "trigger",
        minute,
        "trigger",
        "trigger",
        hour,
        "trigger",
        "kill",
        hour,
        "trigger",
        "trigger",
    )
    outcome, story = played(*steps, options=options, has_values=True)
    assert outcome.failures == []
    waited = [line for line in story.splitlines() if "XADD rstream:retry:" in line]
    assert len(waited) == 2


@pytest.mark.parametrize("kind", ["rollback", "lose_commits"])
@pytest.mark.parametrize("lenient", [{}, {"failOnDataLoss": "false"}], ids=["strict", "lenient"])
def test_an_older_checkpoint_of_a_query_that_removes(kind: str, lenient: Mapping[str, str]) -> None:
    again, options = (Step("add", amount=0.3), "trigger", "trigger"), {**LIST, "onCommit": "delete", **lenient}
    outcome, _ = played("trigger", *again, *again, Step(kind, amount=0.9), *again, options=options)
    assert outcome.failures == []
    assert bool(outcome.met) == (kind == "rollback" or not lenient)


# -- options of the sink -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kill", [0.1, 0.9], ids=["after a task", "after the sink"])
@pytest.mark.parametrize("options", [
    {"transaction": "rows"}, {"streamColumn": "to", "idColumn": "id"}, {"transaction": "rows", "streamColumn": "to"},
])  # fmt: skip
def test_rows_are_there_once_under_a_name_of_their_own_and_in_their_streams(
    options: Mapping[str, str], kill: float
) -> None:
    steps = (Step("add", choice=0.9, amount=0.5), Step("crash", how=kill), "trigger", "trigger")
    outcome, story = played(*steps, sink="once", sink_options=options)
    assert outcome.failures == []
    assert ("out:s:1 " in story) == ("streamColumn" in options)
    assert (" 1-* n " in story) == ("idColumn" in options)
    assert (":q0.rows" in story) == ("transaction" in options)


def test_a_batch_is_not_closed_before_a_replica_has_it() -> None:
    outcome, _ = played("leave_alone", "trigger", "trigger", sink="once", sink_options={"waitReplicas": "1"})
    assert outcome.failures == []
    assert outcome.met == {"ReplicationError | repair the replication": 1}


# -- a cluster ---------------------------------------------------------------------------------------------------------


def test_a_node_serves_its_slots_only() -> None:
    server = ClusterServer.of(ProcessServer().core)
    first, second = (ProcessServer(core=core).client(decode_responses=True) for core in server.slots.cores)
    both = server.client(decode_responses=True)
    both.xadd("s:0", {"n": "1"})
    assert (second.xlen("s:0"), both.xlen("s:0"), [*both.scan_iter()]) == (1, 1, ["s:0"])
    with pytest.raises(redis.ResponseError, match="MOVED 7509 process:2"):
        first.xlen("s:0")
    with pytest.raises(redis.ResponseError, match="CROSSSLOT"):
        first.exists("s:1", "s:3")
    server.move("s:0")
    assert (first.xlen("s:0"), server.slots.epoch) == (1, 2)
    with pytest.raises(redis.ResponseError, match="MOVED 7509 process:1"):
        second.xlen("s:0")


def test_a_query_follows_a_slot_that_moves_amid_a_trigger() -> None:
    second = Step("add", choice=0.9, amount=0.3)
    moves = [Step("reshard", delay, choice) for delay, choice in ((9, 0.0), (30, 0.3), (60, 0.6))]
    outcome, story = played(second, *moves, "trigger", second, "trigger", sink="once", nodes=2)
    assert outcome.failures == []
    assert "MOVED" in story
    assert batches(story)[-1] == "batch 1: 6, 7, 8"


# -- pairs of finding and remedy ---------------------------------------------------------------------------------------


def test_a_finding_has_the_name_of_its_row() -> None:
    text = (
        "group 'g' of stream 's:0' is at 3-0, below the checkpoint's 5-0. Other consumers use this group, so it is not "
        "set forward automatically. Either start 'bob' and wait until it has reached 5-0 (it processes these entries "
        "again). Or, if it has finished them, set the group to the checkpoint (rstream groups seek s:0 --group g)"
    )
    assert finding_of(text, DataLossError(text)) == "GROUP_BELOW shared"
    assert finding_of(f"{text.partition('. ')[0]}. The query goes on at the group's position") == "GROUP_BELOW"
    assert finding_of("The query says something else") == ""
    assert named_in(text) == ["set group"]
    assert finding_of("something else", LedgerError("something else")) == "LedgerError"


def test_a_report_names_what_was_never_met() -> None:
    text = report({pair("ENTRIES_LOST", LENIENT): 3, pair("STREAM_MISSING", "allow losses"): 1, pair("new", "x"): 2})
    lines = text.splitlines()
    assert f"  ENTRIES_LOST: {LENIENT} 3 · never: allow losses" in lines
    assert "  new: x 2" in lines
    count = sum(map(len, possible().values()))
    assert lines[0] == f"findings and remedies: {count} pairs · never met: {count - 2}"


def test_each_finding_of_the_sink_names_a_remedy() -> None:
    without = [name for name, remedies in possible().items() if not remedies]
    assert without == []


# -- a redrive under refused commands ----------------------------------------------------------------------------------


def test_dead_letters_stay_whose_entries_are_refused_within_the_transaction_that_moves_them() -> None:
    """Each of its commands meets the missing right once; the next redrive moves what is left."""
    options = {"startingOffsets": "earliest", "streams": "s:0", "mode": "DEADLETTER", "deadLetterStream": "dead"}
    refused = []
    for passing in range(31, 36):
        refuse = Step("refuse", choice=0.999, amount=((passing + 0.5) / 40) ** 0.5)
        steps = (Step("misfit", amount=0.6), "trigger", "trigger", refuse, Step("redrive", amount=0.9), "trigger")
        outcome, story = played(*steps, options=options, has_values=True)
        assert outcome.failures == []
        refused += [line.split()[2] for line in story.splitlines() if "refused within" in line]
    assert {"XADD", "HSET"} <= {*refused}
