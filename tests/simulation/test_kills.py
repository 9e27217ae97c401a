"""A kill before and after every command: of a trigger, a claim, a commit and a restart.

The histories are in tools/simulation/histories.py. After the kill the query is started again and reads to the end. Each
command after which the driver was killed has a row in the head of source/trigger/trigger.py, which says what the next
run does. In the process the kill comes at the moments that differ, on servers at each tick.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import pytest

from spark_streams.connector.source.trigger import trigger
from tests.turns import TURNS
from tools.servers.server import KINDS, Server
from tools.simulation.histories import KILLS, moments, with_event, writes_of
from tools.simulation.in_process.server import ProcessServer
from tools.simulation.patched import product
from tools.simulation.run import run
from tools.simulation.setup import Step
from tools.simulation.world import World

TICKS = range(1, 200)
CASES = [
    *[(name, "recorder") for name in KILLS],
    *[pytest.param(name, "once", marks=pytest.mark.in_turn(turn % TURNS)) for turn, name in enumerate(KILLS)],
]
SERVERS = ["process", *[pytest.param(kind, marks=pytest.mark.kills) for kind in KINDS]]
# Kinds of keys that the sink writes.
OF_THE_SINK = ("sink", "runs")


def rows() -> set[str]:
    """The first column of the table: a request each."""
    table = (trigger.__doc__ or "").partition("killed after ")[2].partition("\n\n")[0].splitlines()[1:]
    cells = [re.split("  +", line)[0] for line in table if not line.startswith(" ")]
    return {request for cell in cells for request in cell.split(", ")}


def request_of(data: bytes | memoryview) -> str:
    """What a request writes, in the words of the table; empty: nothing, or only what is the sink's."""
    writes: list[str] = []
    for words in writes_of(data):
        name = words[0].decode()
        kinds = [word.decode().split(":")[1] for word in words[1:] if word.startswith(b"rstream:")]
        if kinds and kinds[0] in OF_THE_SINK:
            return ""
        name = f"XGROUP {words[1].decode()}" if name == "XGROUP" else name
        writes.append(f"{name} {kinds[0]}" if kinds and not name.startswith("X") else name)
    return " + ".join(dict.fromkeys(writes))


@contextlib.contextmanager
def noted_kills() -> Iterator[set[str]]:
    """The last request before each kill, unless it only read."""
    noted: set[str] = set()
    last = ""
    tick, happen = World.tick, World.happen

    def noting_tick(self: World, connection: object = None, data: bytes | memoryview | None = None) -> None:
        nonlocal last
        if data is None:
            last = sent.pop(id(connection), "")
        else:
            sent[id(connection)], last = request_of(data), ""
        tick(self, connection, data)  # type: ignore[arg-type]

    def noting_happen(self: World, step: Step) -> None:
        if step.kind == "kill":
            noted.add(last)
        happen(self, step)

    sent: dict[int, str] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(World, "tick", noting_tick)
        patch.setattr(World, "happen", noting_happen)
        yield noted
    noted.discard("")


@pytest.mark.parametrize(("name", "sink"), CASES)
@pytest.mark.parametrize("server", SERVERS, indirect=True)
def test_a_kill_at_any_moment_loses_nothing_and_writes_nothing_twice(server: Server, name: str, sink: str) -> None:
    with product(server), server.client(decode_responses=True) as client:
        ticks = moments(server, client, name, sink) if isinstance(server, ProcessServer) else TICKS
        with noted_kills() as noted:
            for after in ticks:
                failures = run(server, client, with_event(name, after, sink)).failures
                assert not failures, f"killed after {after} ticks: {failures[0].kind}\n{failures[0].details}"
    assert noted
    assert noted - rows() == set(), "connector/source/trigger/trigger.py has no row for a kill after these"
