"""A kill before and after every command: of a trigger, a claim, a commit and a restart.

A tick of the simulation is a moment before or after bytes leave the product. So a kill after each number of ticks is a
kill before and after each command. After it the query is started again and reads to the end.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.simulation.test_sees import more, plan
from tools.servers.server import Server
from tools.simulation.patched import product
from tools.simulation.plan import Plan
from tools.simulation.run import run
from tools.simulation.step import Step

CLAIMS = {"claimIdle": "1ms"}
POISON = {"maxDeliveries": "2", "deadLetterStream": "dead"}
AGAIN = Step("restart", options=(("streams", "s:0"), ("startingOffsets", "earliest")))
# The steps before the one that is killed, that step and those after it.
HISTORIES: Mapping[str, tuple[list[Step | str], list[Step | str], Mapping[str, str]]] = {
    "first trigger": ([], ["trigger", "trigger"], {}),
    "next trigger": (["trigger", more(4)], ["trigger", more(2), "trigger"], {}),
    "small batches": ([], ["drain"], {"maxEntriesPerTrigger": "2"}),
    "claim": ([Step("read"), "trigger", more(3), Step("read"), Step("die")], ["trigger", "trigger"], CLAIMS),
    "hand-over": (["trigger", Step("read"), more(3), Step("give")], ["trigger", "trigger"], {}),
    "restart": (["trigger", more(3), AGAIN], ["trigger", more(3), "trigger"], {}),
    "pattern": ([], ["trigger", more(3), "trigger"], {"streamsPattern": "s:*"}),
    "maxDeliveries": (["trigger", more(3)], ["trigger", "trigger"], POISON),
    "noAck": (["trigger", more(4)], ["trigger", "trigger"], {"noAck": "true"}),
    "removal": (["trigger", more(4)], ["trigger", "trigger"], {"onCommit": "delete"}),
}
TICKS = range(1, 200)
ALWAYS = ("next trigger", "restart", "removal")  # of each run of the tests, the others only of scripts/test --kills


def killed(name: str, after: int, sink: str) -> Plan:
    """Return the history with a kill after so many ticks of its second part."""
    before, then, options = HISTORIES[name]
    given = {**options}
    made = plan(*before, Step("kill", after), *then, sink=sink, **given)
    if "streamsPattern" in given:
        del made.setup.options["streams"]  # type: ignore[attr-defined]
    return made


@pytest.mark.parametrize("sink", ["recorder", pytest.param("once", marks=pytest.mark.kills)])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in ALWAYS else [pytest.mark.kills]) for name in HISTORIES]
)
def test_a_kill_at_any_moment_loses_nothing_and_writes_nothing_twice(server: Server, name: str, sink: str) -> None:
    with product(), server.client(decode_responses=True) as client:
        for after in TICKS:
            failures = run(server, client, killed(name, after, sink)).failures
            assert not failures, f"killed after {after} ticks: {failures[0].kind}\n{failures[0].details}"
