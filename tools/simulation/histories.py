"""Plans by hand: a few steps, and an event after each number of ticks of them. The event is a kill in most.

A tick is a moment before or after bytes leave the product, or between two steps of Spark. So a kill after each number
of ticks is a kill before and after each command. A request that only reads leaves what was there before it. So in the
process, where each run of a history is the same, the moments after requests that write and between two steps of Spark
are all that differ for a kill.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import hiredis
import pytest
import redis

from tools.servers.server import Server
from tools.simulation.actor import Ticks
from tools.simulation.run import run
from tools.simulation.setup import NEVER_AHEAD, Plan, Setup, Step
from tools.simulation.world import World

LENIENT = {"failOnDataLoss": "false"}
CLAIMS = {"claimIdle": "1ms"}
POISON = {"maxDeliveries": "2", "deadLetterStream": "dead"}
AGAIN = Step("restart", options=(("streams", "s:0"), ("startingOffsets", "earliest")))
BREAK = Step("cut", how=0.9)
# Commands that change nothing.
_READS = re.compile(
    "X(INFO|RANGE|REVRANGE|PENDING|LEN|SETID)|M?GET|HGETALL|HM?GET|HKEYS|SMEMBERS|EXISTS|PTTL|PEXPIRE|TYPE|SCAN|TIME|INFO"
    "|ECHO|HELLO|ROLE|CLIENT|(UN)?WATCH|MULTI|EXEC"
)
_NEVER = 1 << 30  # ticks


def plan(*steps: Step | str, sink: str = "recorder", **options: str) -> Plan:
    """One stream with five entries, and these steps."""
    given = {"startingOffsets": "earliest", "streams": "s:0", **options}
    setup = Setup(7, 1, sink, NEVER_AHEAD, 0, given, before=5, chunk=1)
    return Plan(setup, tuple(Step(one) if isinstance(one, str) else one for one in steps))


def more(count: int) -> Step:
    """So many entries."""
    return Step("add", amount=(count - 0.5) / 8)


@dataclass(frozen=True)
class History:
    """Steps before the one in which the events happen, and that step with those after it. ahead: entries for which the
    next batch is reserved ahead."""

    before: list[Step | str]
    then: list[Step | str]
    options: Mapping[str, str] = field(default_factory=dict)
    events: Sequence[Step] = (Step("kill"),)
    ahead: int = NEVER_AHEAD


KILLS: Mapping[str, History] = {
    "first trigger": History([], ["trigger", "trigger"]),
    "next trigger": History(["trigger", more(4)], ["trigger", more(2), "trigger"]),
    "small batches": History([], ["drain"], {"maxEntriesPerTrigger": "2"}),
    "claim": History([Step("read"), "trigger", more(3), Step("read"), Step("die")], ["trigger", "trigger"], CLAIMS),
    "hand-over": History(["trigger", Step("read"), more(3), Step("give")], ["trigger", "trigger"]),
    "restart": History(["trigger", more(3), AGAIN], ["trigger", more(3), "trigger"]),
    "pattern": History([], ["trigger", more(3), "trigger"], {"streamsPattern": "s:*"}),
    "shared": History(["trigger", more(2), Step("read"), more(3)], ["trigger", more(2), "trigger"]),
    "maxDeliveries": History(["trigger", more(3)], ["trigger", "trigger"], POISON),
    "noAck": History(["trigger", more(4)], ["trigger", "trigger"], {"noAck": "true"}),
    "removal": History(["trigger", more(4)], ["trigger", "trigger"], {"onCommit": "delete"}),
    "repair": History(["trigger", more(3)], [Step("remake", how=0.0), "trigger", more(2), "trigger"], LENIENT),
    "new checkpoint": History(["trigger", more(3)], [Step("renew"), "trigger", more(2), "trigger"]),
}
HISTORIES: Mapping[str, History] = {
    **KILLS,
    "backup": History(
        [more(8), "trigger"],
        ["trigger", more(1), "trigger", more(1), "trigger", Step("kill"), Step("restore"), "trigger", "trigger"],
        events=[Step("backup")],
    ),
    "break after a loss": History(
        ["trigger", more(5), Step("trim", amount=0.8)], ["trigger", more(1), "trigger", "trigger"], LENIENT, [BREAK]
    ),
    "break after a part of a loss": History(
        ["trigger", more(5), Step("trim", amount=0.6)], ["trigger", more(1), "trigger", "trigger"], LENIENT,
        [Step("trim"), BREAK],
    ),
    "break after a loss in a batch": History(
        ["trigger", more(5), Step("delete", 16, amount=0.99, how=0.6), "trigger"],
        ["trigger", more(1), "trigger", "trigger"], LENIENT, [BREAK],
    ),
}  # fmt: skip


def with_event(name: str, after: int, sink: str) -> Plan:
    """Return the history with its events after so many ticks of its second part."""
    history = HISTORIES[name]
    steps = [*history.before, *[replace(event, delay=after) for event in history.events], *history.then]
    made = plan(*steps, sink=sink, **history.options)
    made = replace(made, setup=replace(made.setup, ahead=history.ahead))
    if "streamsPattern" in history.options:
        del made.setup.options["streams"]  # type: ignore[attr-defined]
    return made


def writes_of(data: bytes | memoryview) -> Iterator[list[bytes]]:
    """Commands of a request that change something."""
    reader = hiredis.Reader()
    reader.feed(bytes(data))
    while isinstance(words := reader.gets(), list):
        if not _READS.fullmatch(words[0].decode()):
            yield words


def moments(server: Server, client: redis.Redis, name: str, sink: str) -> list[int]:
    """Numbers of ticks after which the event may leave something else than one tick earlier: of a kill, those after
    requests that write and between two steps of Spark."""
    is_kill = HISTORIES[name].events[0].kind == "kill"
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

    def counting_tick(self: Ticks, beside: bool = False, data: bytes | memoryview | None = None) -> None:
        nonlocal passed
        if self.waiting:
            passed += 1
            if is_changed or not is_kill:
                found.append(passed)
        count(self, beside, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(World, "tick", noting_tick)
        patch.setattr(Ticks, "tick", counting_tick)
        assert not run(server, client, with_event(name, _NEVER, sink)).failures
    return found
