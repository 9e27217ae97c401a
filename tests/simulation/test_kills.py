"""A kill before and after every command: of a trigger, a claim, a commit and a restart.

A tick of the simulation is a moment before or after bytes leave the product, or between two steps of Spark. So a kill
after each number of ticks is a kill before and after each command. After it the query is started again and reads to the
end. Each command after which the driver was killed has a row in the head of source/trigger/trigger.py, which says what
the next run does.

A request that only reads leaves what was there before it. So in the process, where each run of a history is the same,
the moments after requests that write and between two steps of Spark are all that differ. On servers it is each tick.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping

import hiredis
import pytest
import redis

from spark_streams.source.trigger import trigger
from tests.simulation.test_sees import LENIENT, more, plan
from tests.turns import TURNS
from tools.servers.server import KINDS, Server
from tools.simulation.in_process.server import ProcessServer
from tools.simulation.patched import product
from tools.simulation.plan import Plan
from tools.simulation.run import run
from tools.simulation.step import Step
from tools.simulation.ticks import Ticks
from tools.simulation.world import World

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
    "repair": (["trigger", more(3)], [Step("remake", how=0.0), "trigger", more(2), "trigger"], LENIENT),
    "new checkpoint": (["trigger", more(3)], [Step("renew"), "trigger", more(2), "trigger"], {}),
}
TICKS = range(1, 200)
CASES = [
    *[(name, "recorder") for name in HISTORIES],
    *[pytest.param(name, "once", marks=pytest.mark.in_turn(turn % TURNS)) for turn, name in enumerate(HISTORIES)],
]
SERVERS = ["process", *[pytest.param(kind, marks=pytest.mark.kills) for kind in KINDS]]


def killed(name: str, after: int, sink: str) -> Plan:
    """Return the history with a kill after so many ticks of its second part."""
    before, then, options = HISTORIES[name]
    given = {**options}
    made = plan(*before, Step("kill", after), *then, sink=sink, **given)
    if "streamsPattern" in given:
        del made.setup.options["streams"]  # type: ignore[attr-defined]
    return made


# Commands that change nothing, and kinds of keys that the sink writes.
READS = re.compile(
    "X(INFO|RANGE|REVRANGE|PENDING|LEN|SETID)|M?GET|HGETALL|HM?GET|HKEYS|SMEMBERS|EXISTS|PTTL|PEXPIRE|TYPE|SCAN|TIME|INFO"
    "|ECHO|CLIENT|(UN)?WATCH|MULTI|EXEC"
)
OF_THE_SINK = ("sink", "runs")


def rows() -> set[str]:
    """The first column of the table: a request each."""
    table = (trigger.__doc__ or "").partition("killed after ")[2].partition("\n\n")[0].splitlines()[1:]
    cells = [re.split("  +", line)[0] for line in table if not line.startswith(" ")]
    return {request for cell in cells for request in cell.split(", ")}


def writes_of(data: bytes | memoryview) -> Iterator[list[bytes]]:
    """Commands of a request that change something."""
    reader = hiredis.Reader()
    reader.feed(bytes(data))
    while isinstance(words := reader.gets(), list):
        if not READS.fullmatch(words[0].decode()):
            yield words


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


def moments(server: Server, client: redis.Redis, name: str, sink: str) -> list[int]:
    """Numbers of ticks after which a kill leaves something else than one tick earlier."""
    tick, count = World.tick, Ticks.tick
    wrote: dict[int, bool] = {}
    found: list[int] = []
    is_changed, passed = False, 0

    def noting_tick(self: World, connection: object = None, data: bytes | memoryview | None = None) -> None:
        nonlocal is_changed
        if data is not None:
            wrote[id(connection)] = any(True for _ in writes_of(data))
        is_changed = connection is None or (data is None and wrote.pop(id(connection), False))
        tick(self, connection, data)  # type: ignore[arg-type]

    def counting_tick(self: Ticks) -> None:
        nonlocal passed
        if self.waiting:
            passed += 1
            if is_changed:
                found.append(passed)
        count(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(World, "tick", noting_tick)
        patch.setattr(Ticks, "tick", counting_tick)
        assert not run(server, client, killed(name, 1 << 30, sink)).failures
    return found


@pytest.mark.parametrize(("name", "sink"), CASES)
@pytest.mark.parametrize("server", SERVERS, indirect=True)
def test_a_kill_at_any_moment_loses_nothing_and_writes_nothing_twice(server: Server, name: str, sink: str) -> None:
    with product(server), server.client(decode_responses=True) as client:
        ticks = moments(server, client, name, sink) if isinstance(server, ProcessServer) else TICKS
        with noted_kills() as noted:
            for after in ticks:
                failures = run(server, client, killed(name, after, sink)).failures
                assert not failures, f"killed after {after} ticks: {failures[0].kind}\n{failures[0].details}"
    assert noted
    assert noted - rows() == set(), "source/trigger/trigger.py has no row for a kill after these"
