"""Each command of a healthy start, trigger, replay, claim and redrive is refused, by each code that a server may give.

An error is not an answer. What passes loses nothing: no entry is lost, read twice, or acknowledged unread, and nothing
but a named error ends the query. What lasts ends it by name. Between MULTI and EXEC a command is refused when it is
queued, by EXEC (EXECABORT), or when EXEC runs it (NOPERM).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import redis

from tests.turns import TURNS
from tools.simulation.histories import CLAIMS, POISON, more
from tools.simulation.histories import plan as plan_of
from tools.simulation.in_process.refusals import CODES, NOPERM, Request
from tools.simulation.in_process.server import ProcessServer
from tools.simulation.patched import product
from tools.simulation.run import run
from tools.simulation.setup import Plan, Step
from tools.simulation.world import World

SERVER = ProcessServer()
BOB_READS, BOB_DIES = Step("read"), Step("die")
MISFITS = Step("misfit", amount=0.5)
CRASH, CRASH_AFTER_THE_SINK = Step("crash"), Step("crash", how=0.9)
REDRIVE = Step("redrive", amount=0.9)
LETTERS = {"mode": "DEADLETTER", "deadLetterStream": "dead"}
ONCE_A_TRIGGER = 4  # commands: after one of them failed, the next attempt looks in another way (XLEN, XINFO STREAM)
MOST = 1_000  # commands that a lasting state refuses before the next run


@dataclass(frozen=True)
class History:
    """before: what happens before the refusal; then: the steps in which the command is refused, and those behind."""

    before: list[Step | str]
    then: list[Step | str]
    options: Mapping[str, str] = field(default_factory=dict)
    sink: str = "recorder"
    ahead: int | None = None

    def plan(self) -> Plan:
        """Return the plan, with a step `refusing` in its place."""
        made = plan_of(*self.before, "refusing", *self.then, sink=self.sink, **self.options)
        options = {
            k: v for k, v in made.setup.options.items() if k != "streams" or "streamsPattern" not in self.options
        }
        ahead, has_values = self.ahead or made.setup.ahead, "mode" in self.options
        return replace(made, setup=replace(made.setup, options=options, ahead=ahead, has_values=has_values))


HISTORIES: Mapping[str, History] = {
    "start": History([], ["trigger", "trigger"]),
    "start of an exactly-once sink": History([], ["trigger", "trigger"], sink="once"),
    "trigger": History(["trigger", more(4)], ["trigger", more(2), "trigger"]),
    "trigger that reserves ahead": History(
        ["trigger", more(8)], ["trigger", "trigger", "trigger"], {"maxEntriesPerTrigger": "3"}, ahead=1
    ),
    "trigger of a shared group": History(["trigger", more(2), BOB_READS, more(3)], ["trigger", more(2), "trigger"]),
    "trigger of a pattern": History(["trigger"], [more(3), "trigger", "trigger"], {"streamsPattern": "s:*"}),
    "trigger without a pending list": History(
        ["trigger", more(8)], ["trigger", "trigger", "trigger"], {"noAck": "true", "maxEntriesPerTrigger": "3"}
    ),
    "trigger that removes": History(["trigger", more(4)], ["trigger", "trigger"], {"onCommit": "delete"}),
    "trigger with dead letters": History(["trigger", MISFITS, more(2)], ["trigger", "trigger"], LETTERS),
    "trigger with retries": History(
        ["trigger", MISFITS, more(2)], ["trigger", "trigger", "trigger", "trigger"], {**LETTERS, "retryDelay": "1s"}
    ),
    "replay": History(["trigger", more(4), CRASH, "trigger"], ["trigger", "trigger"]),
    "replay of a shared group": History(
        ["trigger", BOB_READS, more(4), CRASH, "trigger"], ["trigger", "trigger"]
    ),
    "replay of dead letters that the sink skips": History(
        ["trigger", more(1), BOB_READS, MISFITS, more(2), CRASH_AFTER_THE_SINK, "trigger"],
        ["trigger", "trigger"], LETTERS, sink="skipping",
    ),
    "replay without a pending list": History(
        ["trigger", more(4), CRASH, "trigger"], ["trigger", "trigger"], {"noAck": "true"}
    ),
    "replay that counts attempts": History(
        ["trigger", more(4), CRASH, "trigger"], ["trigger", "trigger", "trigger", "trigger"], POISON
    ),
    "replay of a batch that the sink has": History(
        ["trigger", more(4), CRASH_AFTER_THE_SINK, "trigger"], ["trigger", "trigger"],
        {**POISON, "maxDeliveries": "1"}, sink="once",
    ),
    "replay of a batch that the sink has begun to close": History(
        ["trigger", more(4), Step("kill", 1, at="HSET rstream:sink:q0  1"), "trigger"], ["trigger", "trigger"],
        {**POISON, "maxDeliveries": "1"}, sink="once",
    ),
    "claim": History(["trigger", more(3), BOB_READS, BOB_DIES], ["trigger", "trigger"], CLAIMS),
    "redrive": History([MISFITS, "trigger", "trigger"], [REDRIVE, "trigger", REDRIVE, "trigger"], LETTERS),
}  # fmt: skip


# The defects that this table has shown. Each is found by one refusal at the least.
FOUND = [
    ("replay of dead letters that the sink skips", "LOADING", "xpending/5 s"),
    ("replay of a batch that the sink has", "LOADING", "hgetall sink"),
    ("replay of a batch that the sink has begun to close", "LOADING", "hget sink"),
    ("claim", "LOADING", "get lease"),
    ("trigger without a pending list", "LOADING", "xinfo|groups s"),
    ("trigger without a pending list", "LOADING", "xreadgroup s"),
    ("trigger", "BUSY", "echo"),
    ("trigger", "BUSY", "client|reply"),
]
# A missing right that is no error, and what is then believed.
DEFAULTS = {
    "hgetall shards": "the stream is not in shards",
    "type": "the same",
    "type s": "the same",
    "xlen": "the same",
    "xlen s": "the same, and a query asks again by XINFO STREAM",
    "xsetid none": "the server counts entries",
    "info": "the server evicts nothing",
    "client|reply": "the server cannot suppress replies",
}
# What one refusal may do all the same.
LIMITS = {
    ("NOPERM", "hgetall sink", "alone"): "a source that may not read the sink's keys cuts a batch that the sink has",
    ("NOPERM", "hget sink", "alone"): "the same",
    ("NOPERM", "sadd sink", "within"): "a right is taken away within EXEC: the rows are written without their mark",
    ("NOPERM", "hset notes", "within"): "a right is taken away within EXEC: the dead letter is written, its note stays",
}


def shape(request: Request) -> str:
    """Return the command with its form, and the kind of its key."""
    words = [word.decode("utf-8", "replace") for word in request.words[1:]]
    key = next((word for word in words if ":" in word), "")
    form = f"/{len(words)}" if request.name == "xpending" else ""  # a summary, a page, or one entry
    kind = key.split(":")[1] if key.startswith("rstream:") else "s" if key else ""
    return f"{request.name}{form} {kind}".strip()


@dataclass
class Played:
    """failures: kinds and details; story: its lines; refused: what was; offered: what the code applies to."""

    failures: list[str]
    story: list[str]
    refused: list[Request]
    offered: list[Request]

    @property
    def errors(self) -> list[str]:
        """Errors that ended the query or a redrive."""
        return [found[0] for line in self.story if (found := re.match(r"   (redrive \d+: )?\[RSTREAM_.*", line))]


def play(client: redis.Redis, name: str, code: str, is_met: Callable[[World, int, Request], bool]) -> Played:
    """Play a history. is_met: whether the command with this number, of those that the code applies to, is refused."""
    story: list[str] = []
    offered: list[Request] = []
    refused: list[Request] = []

    def refusing(world: World, step: Step) -> None:
        def chosen(request: Request) -> bool:
            offered.append(request)
            if met := is_met(world, len(offered) - 1, request):
                world.away = True
                refused.append(request)
                world.tell(f"refused {request.place}: {request.words}")
            return met

        SERVER.core.refusals.begin(code, chosen)

    outcome = run(SERVER, client, HISTORIES[name].plan(), story.append, beside={"refusing": refusing})
    return Played([f"{one.kind}\n{one.details}" for one in outcome.failures], story, refused, offered)


def commands_of(client: redis.Redis, name: str, code: str) -> dict[tuple[str, str], list[int]]:
    """Return the numbers of the commands of a healthy history that the code applies to, by shape and place."""
    healthy = play(client, name, code, lambda world, number, request: False)
    assert not healthy.failures, healthy.failures[0]
    numbers: dict[tuple[str, str], list[int]] = {}
    for number, request in enumerate(healthy.offered):
        numbers.setdefault((shape(request), request.place), []).append(number)
    return numbers


def cases() -> list[Any]:
    """Each history with each code, in turns."""
    pairs = list(itertools.product(HISTORIES, CODES))
    return [pytest.param(*pair, marks=pytest.mark.in_turn(turn % TURNS)) for turn, pair in enumerate(pairs)]


@pytest.fixture
def client() -> Iterator[redis.Redis]:
    with product(SERVER), SERVER.client(decode_responses=True) as made:
        yield made


@pytest.mark.parametrize(("name", "code"), cases())
def test_a_refusal_that_passes_loses_nothing(client: redis.Redis, name: str, code: str) -> None:
    """The first and the last command of each shape in each place."""
    for (refused, place), numbers in commands_of(client, name, code).items():
        if (code, refused, place) not in LIMITS:
            for number in {numbers[0], numbers[-1]}:
                _require_nothing_lost(client, name, code, number)


@pytest.mark.parametrize(("name", "code", "refused"), FOUND)
def test_a_refusal_that_was_read_as_an_answer_loses_nothing(
    client: redis.Redis, name: str, code: str, refused: str
) -> None:
    """Each command of this shape."""
    numbers = [n for (of, _), some in commands_of(client, name, code).items() if of == refused for n in some]
    assert numbers
    for number in numbers:
        _require_nothing_lost(client, name, code, number)


def _require_nothing_lost(client: redis.Redis, name: str, code: str, number: int) -> None:
    played = play(client, name, code, lambda world, now, request: now == number)
    assert len(played.refused) == 1
    assert not played.failures, f"{played.refused[0]}: {played.failures[0]}"


@pytest.mark.parametrize(("name", "code"), cases())
def test_a_refusal_that_lasts_ends_the_query_by_name(client: redis.Redis, name: str, code: str) -> None:
    """Commands of one shape are refused until the query is started again. The error names the missing right, or says
    that the state did not pass. A command that is not sent again once it was refused is no state that lasts."""
    for (refused, place), numbers in commands_of(client, name, code).items():
        if (code, refused, place) in LIMITS:
            continue
        played = play(client, name, code, _lasting(numbers[0], refused))
        said = f"{code} for {refused} ({place}), {len(played.refused)} times: {played.errors}"
        assert not played.failures, f"{said}\n{played.failures[0]}"
        if code != NOPERM:
            assert len(played.refused) <= ONCE_A_TRIGGER or "RSTREAM_RETRIES_EXHAUSTED" in played.errors[0], said
        elif refused not in DEFAULTS:
            assert f"+{refused.split(' ')[0].split('/')[0]}" in played.errors[0], said


def _lasting(first: int, refused: str) -> Callable[[World, int, Request], bool]:
    begun: list[int] = []

    def is_met(world: World, number: int, request: Request) -> bool:
        if number < first or shape(request) != refused:
            return False
        begun.append(world.query.runs)
        return begun[0] == begun[-1] and len(begun) <= MOST

    return is_met
