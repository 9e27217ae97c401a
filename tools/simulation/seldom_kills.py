"""Powers that few plans have (seldom.py): kills before what the next run needs is on the server."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tools.simulation.options import STREAMS, with_option
from tools.simulation.setup import Plan
from tools.simulation.step import Step, random_step


def with_late_streams(chance: random.Random, plan: Plan) -> Plan:
    """A stream is added to option `streams`, and the query is killed before its group exists. `latest` stays where the
    query has found it."""
    names = STREAMS[: max(2, plan.setup.streams)]

    def changed(options: Mapping[str, str], streams: Sequence[str] = names) -> dict[str, str]:
        return with_option(with_option(options, "startingOffsets", "latest"), "streams", ",".join(streams))

    options, late = changed(plan.setup.options), chance.randrange(len(names))
    of_the_late = (late + 0.5) / len(names)
    others = changed(options, [*names[:late], *names[late + 1 :]])
    steps = [replace(step, options=tuple(changed(dict(step.options)).items())) if step.options else step
             for step in plan.steps]  # fmt: skip
    kill = [random_step(chance, chance.choice(["kill", "kill", "cut"]), chance.randint(1, 30))]
    if chance.random() < 0.6:
        kill = [replace(kill[0], kind="kill", delay=1, at="XGROUP CREATE")]
    block = [Step("restart", options=tuple(others.items())), Step("trigger"), Step("add", 0, chance.random(), 0.9)]
    block += [Step("add", 0, of_the_late, chance.random()), Step("trigger")]
    block += [Step("restart", options=tuple(options.items())), *kill, Step("trigger")]
    block += [Step("add", 0, of_the_late, chance.random()), Step("trigger"), Step("trigger")]
    place = chance.randint(0, len(steps) // 2)
    steps[place:place] = block
    return replace(plan, setup=replace(plan.setup, streams=len(names), options=options), steps=tuple(steps))


def with_old_entries(chance: random.Random, plan: Plan) -> Plan:
    """A batch has entries that were handed over, or that an earlier checkpoint has left. The query is killed while the
    next one is planned, or while its tasks run."""

    def changed(options: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in options.items() if name != "noAck"}  # it refuses other consumers

    steps = [replace(step, options=tuple(changed(dict(step.options)).items())) for step in plan.steps]
    for _ in range(chance.choice([1, 1, 2])):
        place, choice = chance.randint(0, len(steps)), chance.random()  # of one stream
        if chance.random() < 0.7:
            block = [Step("trigger"), Step("add", 0, choice, 0.6), Step("read", 0, choice, 0.4), Step("trigger"),
                     Step("give", 0, choice, 0.99)]  # fmt: skip
        else:
            block = [Step("add", 0, choice, 0.6), Step("kill", 1, at="XPENDING"), Step("trigger"), Step("renew")]
        kill = chance.choice([*[Step("kill", 1, at="XACK")] * 3, random_step(chance, "kill", chance.randint(1, 60))])
        block += [Step("add", 0, choice, 0.2), Step("trigger"), Step("add", 0, choice, 0.2), kill]
        steps[place:place] = [*block, *[Step("trigger")] * chance.choice([1, 2, 3])]
    return replace(plan, setup=replace(plan.setup, options=changed(plan.setup.options)), steps=tuple(steps))
