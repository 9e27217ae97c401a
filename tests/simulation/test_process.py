"""Random plans on the engine's core in one process: no socket, no sleep, and the same run for the same seed."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import types
from typing import Any

import pytest

from tests.seeds import TIMES
from tools.side_by_side import ROOT
from tools.simulation.in_process.server import ProcessServer
from tools.simulation.patched import product
from tools.simulation.plan import make
from tools.simulation.run import run
from tools.simulation.soak import shrunk, soak

RUNS = 100 * TIMES
FIRST = int(os.environ.get("RSTREAM_SEED") or 0)


Plans = dict[str, list[tuple[Any, ...]]]  # rule → seeds, each with what is added

# Seeds of defects that were mended, each with the rule that their kind has shown (docs/internals/architecture.md).
MENDED: Plans = {
    "batches without a pending list share a token: a later one ends above": [(80005259,)],
    "a mark is behind, or it is written": [
        (241,), (500287, "lists"), (500062, "lists"), (500385, "lists"), (500001, "lists"), (40120333, "faults"),
        (40100848, "faults"), (40100874, "faults"), (1738, "faults"), (82,), (201,),
    ],
    "what is left is named": [
        (40200148, "renew"), (40220682, "renew"), (40220702, "renew"), (40220847, "renew"), (40120285, "faults"),
        (40300222, "faults", "renew"), (40320351, "faults", "renew"), (40320442, "renew", "faults"),
        (40320442, "faults", "renew"), (40020124,),
    ],
    "a replay is compared as a fresh batch": [(815, "faults", "renew"), (600442, "lists")],
    "losses of one attempt add up": [(3100259, "faults")],
    "a note names its batch": [(40020107,), (500413, "lists")],
    "pieces of streams that are not read are away": [
        (500025, "lists"), (500219, "lists"), (500415, "lists"), (500038, "lists"), (500007, "lists"),
        (500089, "lists"),
    ],
    "no time of the server proves a delivery": [(1327, "clock"), (1803, "clock"), (1875, "clock"), (1646, "clock")],
    "a replay asks whether the group is shared": [(76, "driver"), (55, "driver"), (167, "driver"), (191, "driver")],
    "a claim holds what it has looked at": [(13, "driver"), (6, "driver"), (34, "driver"), (50, "driver")],
    "the model counts as `rstream groups seek` does": [(432,)],
    "what a group delivers again is not claimed": [(8600979,), (600322, "lists"), (830339, "lists")],
    "an older copy is found also where the query begins above all entries": [(9100361,)],
    "what is removed while it is counted is lost": [(820082,)],
    "what a late task notes of a batch that was cut is void": [(9100170,)],
    "what was set aside is missed also without maxDeliveries": [(701010, "lists")],
    "what a task has missed and the query has counted is not early": [
        (20851372,), (20851372, "faults"), (20851372, "renew", "faults"), (20851372, "faults", "renew"),
    ],
    "a successor has the lease of a stream that was deleted meanwhile": [(20765,), (20765, "renew")],
    "a query has the lease of each stream that it reads, and of no other": [
        (40000117,), (40321064, "faults", "renew"), (700896, "lists"), (84000198, "patterns"),
    ],
    "a copy of a dead letter may have left its stream before a failover": [
        (40320664, "renew", "faults"), (40320664, "faults", "renew"),
    ],
    "a pattern does not know of streams that were deleted": [(20530,)],
    "no task fails of a process that is killed": [(40221423, "renew"), (40100635, "faults")],
    "the judge knows which entries others had when they were removed": [(7149,), (7149, "renew"), (600305, "drawn")],
    "a number that the checkpoint or the server knows is used": [
        (40100614, "faults"), (9984,), (40000393,), (40220544, "renew"),
    ],
    "a batch whose pieces are held was cut": [(830336, "lists")],
    "a restored server is counted": [(40120735,)],
    "a new stream has nothing left": [(8600454,)],
    "a server from before noAck has nothing unread pending": [(63001311, "faults", "renew")],
    "a group at the checkpoint has read no more than by then": [(60003151,)],
    "a server from before the last batch of a stream has lost its notes": [(2005, "drawn")],
    "a missing record of failed batches is a finding": [
        (61000571, "faults"), (63000562, "faults", "renew"), (63000580, "faults", "renew"),
    ],
    "a missing commit mark is a finding": [
        (61000199, "faults"), (61000552, "faults"), (61000642, "faults"), (61000893, "faults"), (62000411, "renew"),
        (62000422, "renew"), (63000520, "faults", "renew"),
    ],
    "no mark stays of a stream that the query has stopped reading": [(84000109, "delays")],
    "entries of a missing group are counted when their batch is cut": [(84000302, "hands")],
    "the origin of a dead letter is recorded before it": [
        (84000082, "redriven"), (84000244, "redriven"), (84000306, "redriven"),
    ],
    "a redrive tells what was refused, also after a lost connection": [(84000236, "redriven")],
    "behind a missing mark a group may be set back": [(83000750, "faults", "renew")],
    "a claim reports what it forgets": [(83000482, "faults", "renew")],
    "what a server has counted as read since is not missed": [(97640014, "faults")],
    "a bookmark stays where the query begins anew": [(95003811,)],
    "as many as the batch has may be pending, and not be its entries": [(97001992, "renew")],
    "a run knows that it has cut a batch": [(81001874, "faults"), (81004536, "faults")],
    "a stream that was left out and is missing stops no run": [(83005517, "faults", "renew")],
    "nothing is left where a group is set, and nothing is pending": [
        (80019352,), (95001212,), (96002537, "faults"), (98000069, "faults", "renew"),
    ],
    "a mark has a name of its own where a new checkpoint begins elsewhere": [(83013336, "faults", "renew")],
    "nothing is set aside of a stream that the query has stopped reading": [(80013322,)],
    "what was read by the checkpoint says nothing of another position": [(81003104, "faults")],
    "the sink learns of what is set aside also from a run that knows nothing any more": [(86100076, "refused")],
    "under an older copy of the checkpoint the numbers go on, also from before the first batch": [(82007538, "renew")],
    "a group that is alone is never below where its query begins": [(83005689, "faults", "renew")],
    "an error names a remedy": [(40300199, "faults", "renew"), (40100784, "faults"), (961181,)],
}  # fmt: skip
# Seeds in which the product does what is documented, each with words of the row (docs/reference/).
DOCUMENTED: Plans = {
    "A strict query stops at each start until the group has passed the entry": [
        (40321039, "renew", "faults"),
        (40321039, "faults", "renew"),
    ],
    "passed over by `seek`, or left pending by an earlier checkpoint": [(3100586,)],
    "or while entries are pending that no batch has": [(9150020, "drawn")],
    "restored once more, to a newer state": [(820141,), (80016433,), (96002091, "faults")],
    "or its record (`maxDeliveries`) are missing, or older": [(61001354, "faults")],
    "before the query's group was created (or it is then destroyed)": [(61000158, "faults")],
    "writes the dead letter, or sends the entries back, again": [
        (84000016, "redriven"),
        (84000275, "redriven"),
        (84000322, "redriven"),
        (84000123, "redriven"),
        (84000291, "redriven"),
        (84000232, "redriven"),
    ],
    "Only exactly-once `writeStream`, with its record, writes no rows again": [(84, "restored")],
    "If a pattern no longer finds the stream when the query starts": [(84000313, "delays")],
    "They stay pending until the group has passed them again": [(83004634, "faults", "renew"), (80105033,)],
    "or a batch from before that option, each": [(81006959, "faults")],
    "It is not noticed: these entries become neither rows nor dead letters": [
        (81001379, "faults"),
        (81003685, "faults"),
    ],
    "(without `noAck`) its dead letters, are not": [
        (83002503, "faults", "renew"),
        (83003139, "faults", "renew"),
    ],
    "If they are not pending now, they are not reported": [
        (62000465, "renew"),
        (60002727,),
        (917000165, "faults"),
    ],
    "A group is moved or created again while its query takes or reserves a batch": [(62000524, "renew")],
    "A new checkpoint continues where the group stands": [(82006841, "renew"), (83006433, "faults", "renew")],
    "It may be counted although its row or dead letter is written": [(82004336, "renew")],
    "Their entries are acknowledged without a dead letter": [(86100125, "lists")],
    "Dead letters are sent back again": [(80020627,), (82014704, "renew")],
    "Its rows are written again": [(81012598, "faults"), (82014157, "renew"), (95004022,)],
    "The query begins at the stream's end at that moment, or at the ID": [(961151,), (40120097, "faults")],
}


# Seeds of errors of the model, each with what the product documents, and the model did not know.
EXCUSED: Plans = {
    # data-loss.md: an error names a loss once
    "an error has counted what its claim has dropped": [(820330, "faults")],
    # guarantees.md, Source, Order
    "only one of two executions of a task has read it": [(20919,)],
    # guarantees.md, Source: a query answers for entries from its first batch on
    "removed before the group is set to where a new checkpoint begins": [(3074, "renew", "faults")],
    # unnoticed.md, Who runs the servers: producers add as many entries as were lost
    "restored, and as many have left as were read": [(5020,)],
    # data-loss.md: the record of a batch is older, and a lenient query reads it again
    "pending again, and the record is older": [(40100166, "faults")],
    # unnoticed.md, Who may delete keys: rstream:committed
    "the mark is deleted, restored, or not written yet": [
        (20850448,),
        (20850448, "faults"),
        (40320501, "renew", "faults"),
        (40320501, "faults", "renew"),
        (600274, "lists"),
        (80003049,),
    ],
    # the same: a shared group is below the checkpoint
    "a group that is created where an unfinished batch begins delivers it again": [(80005297,)],
    # unnoticed.md, Who writes other consumers: they join, read and leave before the next batch
    "the query has looked before others leave, and has had no batch": [(81007669, "faults")],
    # the same: of a group that was set forward amid a trigger, nobody has read what it has passed
    "a group above the last batch was set there, although others may have left": [
        (82009944, "renew"),
        (83011918, "faults", "renew"),
    ],
    # what had been made of a dead letter belongs to a state of the server
    "saved after a return to a state from before a redrive": [
        (81009658, "faults"),
        (82010031, "renew"),
        (83009187, "faults", "renew"),
        (83012153, "faults", "renew"),
    ],
    # unnoticed.md, Who may delete keys: rstream:missing
    "a server from before the tasks' notes of a deleted entry": [(81011429, "faults")],
    # docs/guide/change-a-group.md: those above the new position are delivered again
    "sought for an older copy, and the newer checkpoint is used again": [(81017013, "faults")],
    # unnoticed.md, Who operates queries and groups: the newer checkpoint is used again
    "an older copy of the checkpoint has replaced the record": [(830368, "lists")],
    # the same: what it has left pending, also for others
    "delivered to others since an older copy was used, and handed over": [(80000360,), (82004454, "renew")],
    # data-loss.md: a shared group (now or at the last batch) decides
    "shared at the batch that is logged after the server was restored": [(80000491,)],
    # data-loss.md, Losses in a failover: while entries are pending that no batch has
    "entries may be left at the batch that is logged after the server was restored": [
        (80001441,),
        (80004285,),
        (80007510,),
    ],
    # unnoticed.md, Who operates queries and groups: lenient, and the group is missing
    "as many have left as were read, or others had read": [(483,), (960375,), (80021539,)],
    # unnoticed.md, Who operates queries and groups: a shared group is set forward
    "shared at the last batch, and set forward": [(1220, "faults")],
    # unnoticed.md, Who writes producers: a stream is created again, with lower IDs
    "below where the query begins": [(40220740, "renew"), (40100912, "faults"), (80000971,)],
    # unnoticed.md, Who writes producers: the same within a batch
    "read in the place of deleted entries": [(40300164, "renew", "faults")],
    # unnoticed.md, Who writes other consumers: they delete the group
    "in the range of a batch, and in none": [(8600639,)],
    # docs/guide/trim.md: "A group that is created just then may miss entries", also those where no batch began
    "another group is created while the query removes entries": [(59980176,)],
    # options.md, startingOffsets: where a new group starts
    "a stream that a pattern has stopped reading begins anew in a list": [
        (74070, "drawn"),
        (84000052, "patterns"),
        (84000375, "patterns"),
    ],
    # unnoticed.md, Who runs the servers: restored, and the group is then destroyed
    "an older copy of the checkpoint is above a stream that was restored, and lost its group": [(81009906, "faults")],
    # unnoticed.md, Who writes producers: XTRIM in a shared group before the query began
    "trimmed above a shared group before the first batch": [(81015584, "faults"), (83014259, "faults", "renew")],
    # nothing to document: the model
    "what a group delivers again is unread": [(83000548, "faults", "renew")],
    "a restored server gives an ID a second time": [(81001096, "faults")],
    "a strict run reads again what a lenient one has missed in a batch that was not committed": [(80011082,)],
    "a dead letter is there again after a server was empty, and its entry was sent back before": [(80005717,)],
    "a stream that is new while another process begins": [(103000113, "renew")],
    "a lease that is forgotten while a query begins": [(83000825, "faults", "renew")],
    "a session is renewed while a reply is late": [
        (81000865, "faults"),
        (83004304, "faults", "renew"),
        (83006828, "faults", "renew"),
        (83005039, "faults", "renew"),
        (83008975, "faults", "renew"),
        (98001186, "faults", "renew"),
    ],
    "pieces of a batch that was cut wait for a run without noAck": [(81004388, "faults"), (80006002,)],
    "an entry that does not fit is deleted unread": [(81004471, "faults")],
    "an entry that waits for a retry when an older copy of the checkpoint is used": [(81005900, "faults")],
    "a dead letter that is written just before an older copy of the checkpoint is used": [
        (82006902, "renew"),
        (81007587, "faults"),
        (84000017, "redriven"),
    ],
    "a run that ends at the present entries reads no stream that is there again": [(81005017, "faults")],
    "a row that is written at least once comes after later ones": [(81003147, "faults"), (82003552, "renew")],
    "a replica that is lost just after it has confirmed": [(84000269, "outputs")],
    "a mark that is deleted before the first batch is missed after it": [(82008158, "renew")],
    "an entry that a new checkpoint reads again leaves its stream": [(82007272, "renew")],
    "a new checkpoint after a missing stream, or group": [
        (83002662, "faults", "renew"),
        (83002595, "faults", "renew"),
        (83003458, "faults", "renew"),
        (82002919, "renew"),
    ],
    "handed over under a new checkpoint, and read under the one before": [(83002807, "faults", "renew")],
    "the lease of a deleted stream that the checkpoint names": [(83002367, "faults", "renew")],
    "a pattern that finds no stream, and another query of the consumer": [
        (84000104, "older"),
        (80002041,),
        (83012042, "faults", "renew"),
        (83014857, "faults", "renew"),
    ],
    "with delivery=at-least-once the tasks wait for the replicas, and the end of the batch is not recorded": [
        (2007, "drawn"),
    ],
    "a redrive that has stood still for a day": [(84000200, "delays")],
    "a group that was set back below its stream's first entry": [(62000500, "renew")],
    "producers use no ID of an entry that was sent back": [(60000328,)],
    "another process with onNewCheckpoint=restart has set the groups": [(8600158,)],
    "a retry is lost with the entry that it retries": [(8600490,)],
    "removed while it was pending for another consumer": [(8600593,)],
    "a group that another process creates for the query delivers again, also to others": [(95002037,)],
    "a run without mode=DEADLETTER after a batch with notes: the operator sets it again": [(96000225, "faults")],
}


@pytest.mark.parametrize(("rule", "seed", "additions"), [
    (rule, seed, additions)
    for rule, plans in [*MENDED.items(), *DOCUMENTED.items(), *EXCUSED.items()]
    for seed, *additions in plans
])  # fmt: skip
def test_a_plan_that_has_failed_passes(rule: str, seed: int, additions: list[str]) -> None:
    """The plans of defects that were mended, and of errors of the model."""
    server = ProcessServer()
    with product(server), server.client(decode_responses=True) as client:
        failures = run(server, client, make(seed, *additions)).failures
    assert [one.kind for one in failures] == [], rule


@pytest.mark.parametrize("words", DOCUMENTED)
def test_what_a_plan_shows_is_documented(words: str) -> None:
    assert any(words in " ".join(page.read_text().split()) for page in (ROOT / "docs" / "reference").glob("*.md"))


@pytest.mark.parametrize("additions", [(), ("faults",), ("renew", "faults"), ("drawn",)], ids="+".join)
def test_nothing_is_lost_doubled_or_passed_over_in_silence(additions: tuple[str, ...]) -> None:
    """Plans of other seeds than those that run on servers in their own time."""
    server, first = ProcessServer(), FIRST + 1_000 * (1 + len(additions))
    seeds = range(first, first + RUNS)
    for tally in soak(server, seeds, additions=additions):
        for seed, *_ in tally.seeds.values():
            words = " ".join(["--story", str(seed), *(f"--add {name}" for name in additions)])
            pytest.fail(f"scripts/simulate {words}\n{_story(server, seed, additions)}", pytrace=False)


def _story(server: ProcessServer, seed: int, additions: tuple[str, ...]) -> str:
    """The shortest plan that fails like this one, and its story."""
    lines: list[str] = []
    with product(server), server.client(decode_responses=True) as client:
        plan = shrunk(server, client, make(seed, *additions))
        outcome = run(server, client, plan, lines.append)
    return "\n".join([*lines, "", str(plan), "", *[f"{one.kind}\n    {one.details}" for one in outcome.failures]])


def test_other_plans_have_another_digest() -> None:
    server = ProcessServer()
    digests = [[tally.digest for tally in soak(server, range(seed, seed + 1))] for seed in (3, 3, 4)]
    assert digests[0] == digests[1] != digests[2]


def test_what_a_task_reads_from_ends_with_it() -> None:
    """Its end sends notes: otherwise the moment at which Python collects garbage would decide a plan."""
    server = ProcessServer()
    gc.collect()
    gc.disable()
    try:
        with product(server), server.client(decode_responses=True) as client:
            run(server, client, make(59995061))
        generators = [one for one in gc.get_objects() if isinstance(one, types.GeneratorType)]
        assert [one for one in generators if one.gi_frame is not None and one.gi_code.co_name == "read_task"] == []
    finally:
        gc.enable()


def simulated(hash_seed: str, *words: str) -> str:
    """What a process with this PYTHONHASHSEED prints, without its speed."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.simulation", *words],
        cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": hash_seed}, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return re.sub(r"[0-9.]+ plans/s", "", done.stdout)


def test_a_seed_gives_the_same_commands_and_replies_in_each_process() -> None:
    """In whichever order Python keeps its sets, and however many processes share the plans: other ones each day."""
    plans = "--runs", "4", "--seed", str(3 + 4 * (FIRST % 7))
    first = simulated("1", *plans)
    assert re.search(r"4 plans ·  · digest [0-9a-f]{16} · 0 undocumented", first)
    assert simulated("2", *plans, "--jobs", "2") == first
