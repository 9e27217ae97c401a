"""Plans with two drivers on one group (drivers.py). Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

from tools.simulation.options import DEAD, STREAMS
from tools.simulation.setup import Plan
from tools.simulation.step import Step, random_step

NEVER_AHEAD = 1 << 62
_KINDS: Mapping[str, int] = {"drive": 20, "drive_add": 6, "drive_wait": 5, "drive_kill": 4, "drive_crash": 2}
_TRIGGER = 90  # ticks of a small batch, from its start to its end


def with_a_second_driver(chance: random.Random, plan: Plan) -> Plan:
    """Replace a plan by one with two drivers that die, come back, and claim from each other."""
    count = chance.choice([1, 1, 2])
    setup = replace(
        plan.setup,
        streams=count,
        sink=chance.choice(["recorder", "recorder", "once"]),
        ahead=chance.choice([1, NEVER_AHEAD]),
        options=_options(chance, count),
        before=chance.choice([0, 3, 8]),
        has_values=False,
        drivers=2,
    )
    steps = [Step("drive_options", choice=0.9, options=tuple(_options(chance, count).items()))]
    for kind in chance.choices([*_KINDS], [*_KINDS.values()], k=chance.randint(8, 30)):
        step = random_step(chance, kind, 0)
        if kind == "drive":
            step = replace(step, delay=chance.choice([0, 0, chance.randint(1, 20), chance.randint(1, _TRIGGER)]))
        steps.append(step)
        if kind == "drive_kill" and chance.random() < 0.2:
            steps.append(replace(step, kind="drive_options", options=tuple(_options(chance, count).items())))
    for _ in range(chance.choice([0, 1, 1, 2])):
        place = chance.randint(1, len(steps))
        steps[place:place] = _robbery(chance)
    return replace(plan, setup=setup, steps=tuple(steps))


def _robbery(chance: random.Random) -> list[Step]:
    """One driver dies amid a batch, and the other one claims. The first one comes back: afterwards, or just before the
    other one's claim reaches the server."""
    one, other = chance.choice([(0.1, 0.9), (0.9, 0.1)])
    block = [Step("drive_kill", choice=other)] if chance.random() < 0.5 else []  # then the first one is alone
    block += [random_step(chance, "drive_add", 0)]
    if chance.random() < 0.3:
        block += [Step("drive_crash", choice=one, how=chance.choice([0.0, 0.9])), Step("drive", choice=one)]
    else:
        block += [Step("drive", chance.randint(_TRIGGER // 4, _TRIGGER), one), Step("drive_kill", choice=one)]
    block += [Step("drive_wait", amount=chance.choice([0.1, 0.6]))]
    if chance.random() < 0.4:
        back = Step("drive", chance.choice([0, chance.randint(1, _TRIGGER)]), one)
        block += [Step("drive", chance.choice([0, 0, 1]), other, at="XCLAIM"), back]
    rest = [Step("drive", chance.choice([0, 0, chance.randint(1, _TRIGGER)]), who) for who in (other, other, one, one)]
    return [*block, *rest[chance.choice([0, 1]) :]]


def _options(chance: random.Random, streams: int) -> dict[str, str]:
    options = {"streams": ",".join(STREAMS[:streams]), "startingOffsets": "earliest"}
    if chance.random() < 0.75:
        options["claimIdle"] = chance.choice(["1ms", "1s"])
    if chance.random() < 0.5:
        options["maxEntriesPerTrigger"] = chance.choice(["1", "2", "4"])
    if chance.random() < 0.3:
        options["failOnDataLoss"] = "false"
    if chance.random() < 0.25:
        options |= {"maxDeliveries": chance.choice(["1", "2"]), "deadLetterStream": DEAD}
    return options
