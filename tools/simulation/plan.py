"""Plans: what a run is about and its steps, all from one seed. Pure.

A run has only a few kinds of powers, often one, sometimes all: so single causes are seen alone, and together.
"""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from tools.simulation.step import Step

STREAMS = ("s:0", "s:1", "s:2", "s:3")
PATTERN = "s:*"
DEAD = "dead"
CLAIM_IDLE = "30m"
NEVER_AHEAD = 1 << 62

# How often each kind is chosen, beside the adding and the triggers; by group, since those make sense together.
POWERS: Mapping[str, Mapping[str, int]] = {
    "kills": {"kill": 6},
    "restarts": {"restart": 4},
    "trims": {"trim": 4},
    "deletes": {"delete": 4},
    "others": {"read": 6, "acknowledge": 2, "die": 2, "leave": 1},
    "tasks": {"fail": 3, "twin": 3},
    "hands": {"give": 3, "grab": 3, "settle": 2},
    "group": {"setid": 3, "destroy": 1, "remake": 2, "expel": 2},
    "vanish": {"vanish": 3},
    "server": {"backup": 3, "restore": 3, "flush": 1},
    "checkpoint": {"rollback": 2, "lose_commits": 1},
    "network": {"cut": 4, "away": 2},
    "keys": {"evict": 3},
    "clock": {"clock": 2},
    "streams": {"relist": 3},
    "limits": {},
}
AT_ONCE = ("trigger", "drain", "twin", "rollback", "lose_commits")


@dataclass(frozen=True)
class Setup:
    """What stays the same in a run.

    sink: `recorder` or `once`; ahead: from how many entries on the next batch is reserved ahead; pace: how many
    ticks the driver's thread works at each of the world's, 0: only when it is waited for, -1: all at once; options: of
    the first start; before: entries that are there before it.
    """

    seed: int
    streams: int
    sink: str
    ahead: int
    pace: int
    options: Mapping[str, str]
    before: int
    retries: int = 0
    chunk: int = 3


@dataclass(frozen=True)
class Plan:
    """A run."""

    setup: Setup
    steps: tuple[Step, ...]

    def without(self, places: range) -> Plan:
        """The same without these steps."""
        return replace(self, steps=tuple(one for at, one in enumerate(self.steps) if at not in places))

    def __str__(self) -> str:
        lines = [str(self.setup), *[f"  {at:>3}  {one}" for at, one in enumerate(self.steps)]]
        return "\n".join(lines)


def make(seed: int) -> Plan:
    """The plan of this seed."""
    chance = random.Random(seed)
    powers = _powers(chance)
    count = chance.choice([1, 1, 1, 2, 2, 3, 4])
    setup = Setup(
        seed=seed,
        streams=count,
        sink=chance.choice(["recorder", "recorder", "once"]),
        ahead=chance.choice([1, 1, NEVER_AHEAD]),
        pace=chance.choice([-1, 0, 1, 1, 2]),
        options=options(chance, count, powers),
        before=chance.choice([0, 0, 3, 12]),
        retries=chance.choice([0, 1]),
        chunk=chance.choice([1, 2, 3, 7]),
    )
    if "checkpoint" not in powers:
        # A query that is set back is told of what it has removed. By another chance, so that seeds stay what they were.
        removes = random.Random(f"{seed} onCommit").choice(["keep", "keep", "trim", "delete"])
        setup = replace(setup, options={**setup.options, "onCommit": removes})
    return Plan(setup, tuple(_steps(chance, setup, powers)))


def options(chance: random.Random, streams: int, powers: Collection[str]) -> dict[str, str]:
    """Options of a query over so many streams. powers: the groups of powers of the run: others may read from its
    group, its batches may be cut."""
    shared = "others" in powers
    given = {"startingOffsets": chance.choice(["earliest", "earliest", "latest", "id"])}
    if chance.random() < 0.4:
        given["streamsPattern"] = PATTERN
        if given["startingOffsets"] == "id":
            given["startingOffsets"] = "earliest"
    else:
        given["streams"] = ",".join(STREAMS[:streams])
    if chance.random() < 0.7:
        given["maxEntriesPerTrigger"] = chance.choice(["1", "2", "4", "7", "15"])
    mode = chance.choice(["plain", "plain", "plain", "claim", "noAck", "at-most-once"])
    if mode == "claim" and shared:
        given["claimIdle"] = CLAIM_IDLE
    elif mode == "noAck" and not shared:
        given["noAck"] = "true"
    elif mode == "at-most-once":
        given["delivery"] = "at-most-once"
    if chance.random() < 0.25:
        given["ordered"] = "true"
    elif chance.random() < 0.6:
        given["entriesPerPartition"] = chance.choice(["1", "2", "5", "9"])
    if "limits" in powers and mode in ("plain", "claim"):
        given |= {"maxDeliveries": chance.choice(["1", "2", "3"]), "deadLetterStream": DEAD}
    if chance.random() < 0.4:
        given["failOnDataLoss"] = "false"
    return given | _other_limits(given)


def _other_limits(given: Mapping[str, str]) -> dict[str, str]:
    """Limits of bytes and by stream, now and then. Drawn apart, so that a seed's other choices are what they were."""
    chance = random.Random(repr(given))
    most = given.get("maxEntriesPerTrigger")
    found: dict[str, str] = {}
    if chance.random() < 0.2:
        found["maxBytesPerTrigger"] = chance.choice(["1", "20", "60", "300"])
    if most is not None and chance.random() < 0.2:
        found["maxEntriesPerTrigger"] = json.dumps({"*": int(most)})
    elif (most or found) and chance.random() < 0.3:
        found["streamWeights"] = json.dumps({"*": chance.choice([1, 3, 100])})
    return found


def _powers(chance: random.Random) -> dict[str, Mapping[str, int]]:
    names = list(POWERS)
    count = chance.choice([1, 1, 2, 2, 3, 4, len(names)])
    chosen = set(chance.sample(names, min(count, len(names))))
    if "hands" in chosen:
        chosen.add("others")
    if "limits" in chosen:
        chosen.add("kills")
    return {name: POWERS[name] for name in names if name in chosen}


def _steps(chance: random.Random, setup: Setup, powers: Mapping[str, Mapping[str, int]]) -> list[Step]:
    kinds = {"add": 10, "trigger": 16, "drain": 2}
    for group in powers.values():
        kinds.update(group)
    steps = []
    for kind in chance.choices(list(kinds), list(kinds.values()), k=chance.randint(8, 36)):
        delay = 0
        if kind not in AT_ONCE:
            # A trigger of a small query is some 30 ticks long.
            delay = chance.choice([0, chance.randint(1, 12), chance.randint(1, 60)])
        given = options(chance, setup.streams, powers) if kind == "restart" else {}
        if given:
            given = _keeping(given, setup.options)
        numbers = [round(0.999 * chance.random(), 3) for _ in range(3)]
        steps.append(Step(kind, delay, *numbers, options=tuple(given.items())))
    return steps


def _keeping(given: Mapping[str, str], first: Mapping[str, str]) -> dict[str, str]:
    """Changed options, but for what a query keeps: its streams and where new groups start."""
    kept = ("streams", "streamsPattern", "startingOffsets", "onCommit")
    return {**{k: v for k, v in given.items() if k not in kept}, **{k: first[k] for k in kept if k in first}}
