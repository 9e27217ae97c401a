"""Plans: the setup of a run and its steps, generated from one seed. Pure.

A run uses a few groups of powers, often one, sometimes all: so causes occur alone and together.
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

# Weight of each kind of step among additions and triggers. Steps of a group belong together.
POWERS: Mapping[str, Mapping[str, int]] = {
    "kills": {"kill": 6},
    "restarts": {"restart": 4},
    "trims": {"trim": 4},
    "deletes": {"delete": 4},
    "others": {"read": 6, "acknowledge": 2, "die": 2, "leave": 1},
    "tasks": {"fail": 3, "twin": 3},
    "claims": {"give": 3, "grab": 3, "settle": 2},
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
# Weight of each kind among the faults that are added to a plan.
FAULTS: Mapping[str, int] = {"slow": 3, "part": 4, "fail_over": 2, "hurry": 2}
AT_ONCE = ("trigger", "drain", "twin", "rollback", "lose_commits", "renew")


@dataclass(frozen=True)
class Setup:
    """Parameters of a run.

    sink: `recorder` or `once`; ahead: minimum of entries for which the next batch is reserved ahead; pace: ticks of the
    driver's thread for each tick of the world, 0: only while the driver waits for it, -1: all at once; options: of the
    first start; before: entries that exist before it.
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
        """Return the plan without the steps at these indexes."""
        return replace(self, steps=tuple(step for index, step in enumerate(self.steps) if index not in places))

    def __str__(self) -> str:
        lines = [str(self.setup), *[f"  {index:>3}  {step}" for index, step in enumerate(self.steps)]]
        return "\n".join(lines)


def make(seed: int, *additions: str) -> Plan:
    """Return the plan of this seed. additions: names of ADDITIONS, steps that are put into it."""
    plan = _made(seed)
    for name in additions:
        plan = replace(plan, steps=tuple(ADDITIONS[name](random.Random(f"{seed} {name}"), list(plan.steps))))
    return plan


def _with_renewals(chance: random.Random, steps: list[Step]) -> list[Step]:
    """New checkpoints for the used group, at one to four places."""
    for _ in range(chance.choice([1, 1, 2, 4])):
        place = chance.randint(0, len(steps))
        steps[place:place] = [Step("renew"), *([Step("trigger")] * chance.choice([0, 1, 2]))]
    return steps


def _with_faults(chance: random.Random, steps: list[Step]) -> list[Step]:
    """Faults that need the plan's clock, or that older seeds do not know, at one to four places."""
    for kind in chance.choices(list(FAULTS), list(FAULTS.values()), k=chance.choice([1, 1, 2, 4])):
        place = chance.randint(0, len(steps))
        numbers = [round(0.999 * chance.random(), 3) for _ in range(3)]
        fault = Step(kind, chance.choice([0, chance.randint(1, 12), chance.randint(1, 60)]), *numbers)
        steps[place:place] = [fault, *([Step("trigger")] * chance.choice([0, 1, 2]))]
    return steps


# A generator of their own keeps the plans of older seeds.
ADDITIONS = {"renew": _with_renewals, "faults": _with_faults}


def _made(seed: int) -> Plan:
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
        # A query that is set back would report its own removals. A separate generator keeps the plans of older seeds.
        removes = random.Random(f"{seed} onCommit").choice(["keep", "keep", "trim", "delete"])
        setup = replace(setup, options={**setup.options, "onCommit": removes})
    return Plan(setup, tuple(_steps(chance, setup, powers)))


def options(chance: random.Random, streams: int, powers: Collection[str]) -> dict[str, str]:
    """Return random options of a query over this number of streams. powers: groups of powers of the run."""
    shared = "others" in powers
    settings = {"startingOffsets": chance.choice(["earliest", "earliest", "latest", "id"])}
    if chance.random() < 0.4:
        settings["streamsPattern"] = PATTERN
        if settings["startingOffsets"] == "id":
            settings["startingOffsets"] = "earliest"
    else:
        settings["streams"] = ",".join(STREAMS[:streams])
    if chance.random() < 0.7:
        settings["maxEntriesPerTrigger"] = chance.choice(["1", "2", "4", "7", "15"])
    mode = chance.choice(["plain", "plain", "plain", "claim", "noAck"])
    if mode == "claim" and shared:
        settings["claimIdle"] = CLAIM_IDLE
    elif mode == "noAck" and not shared:
        settings["noAck"] = "true"
    if chance.random() < 0.25:
        settings["ordered"] = "true"
    elif chance.random() < 0.6:
        settings["entriesPerPartition"] = chance.choice(["1", "2", "5", "9"])
    if "limits" in powers and mode in ("plain", "claim"):
        settings |= {"maxDeliveries": chance.choice(["1", "2", "3"]), "deadLetterStream": DEAD}
    if chance.random() < 0.4:
        settings["failOnDataLoss"] = "false"
    return settings | _other_limits(settings)


def _other_limits(settings: Mapping[str, str]) -> dict[str, str]:
    """Return limits of bytes and by stream for some plans. A separate generator keeps the plans of older seeds."""
    chance = random.Random(repr(settings))
    limit = settings.get("maxEntriesPerTrigger")
    limits: dict[str, str] = {}
    if chance.random() < 0.2:
        limits["maxBytesPerTrigger"] = chance.choice(["1", "20", "60", "300"])
    if limit is not None and chance.random() < 0.2:
        limits["maxEntriesPerTrigger"] = json.dumps({"*": int(limit)})
    return limits


def _powers(chance: random.Random) -> dict[str, Mapping[str, int]]:
    names = list(POWERS)
    count = chance.choice([1, 1, 2, 2, 3, 4, len(names)])
    groups = set(chance.sample(names, min(count, len(names))))
    if "claims" in groups:
        groups.add("others")
    if "limits" in groups:
        groups.add("kills")
    return {name: POWERS[name] for name in names if name in groups}


def _steps(chance: random.Random, setup: Setup, powers: Mapping[str, Mapping[str, int]]) -> list[Step]:
    kinds = {"add": 10, "trigger": 16, "drain": 2}
    for group in powers.values():
        kinds.update(group)
    steps = []
    for kind in chance.choices(list(kinds), list(kinds.values()), k=chance.randint(8, 36)):
        delay = 0
        if kind not in AT_ONCE:
            # A trigger of a small query takes about 30 ticks.
            delay = chance.choice([0, chance.randint(1, 12), chance.randint(1, 60)])
        settings = options(chance, setup.streams, powers) if kind == "restart" else {}
        if settings:
            settings = _keeping(settings, setup.options)
        numbers = [round(0.999 * chance.random(), 3) for _ in range(3)]
        steps.append(Step(kind, delay, *numbers, options=tuple(settings.items())))
    return steps


def _keeping(changed: Mapping[str, str], first: Mapping[str, str]) -> dict[str, str]:
    """Return changed options that keep the streams of a query and the start of its new groups."""
    kept = ("streams", "streamsPattern", "startingOffsets", "onCommit")
    return {**{k: v for k, v in changed.items() if k not in kept}, **{k: first[k] for k in kept if k in first}}
