"""Mixes: what `--add NAME` puts into a whole plan, its setup included. Pure.

Each has a generator of its own, so the plans of other mixes stay as they are. `drawn` has each of the others in its
share of the plans, as the mix itself makes them: a seed that fails with `drawn` can be told with the one that it has.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace

from spark_streams.connector.source.limits import Limits
from tools.simulation.clocks import with_clocks
from tools.simulation.drivers_plan import with_a_second_driver
from tools.simulation.options import STREAMS, with_option
from tools.simulation.setup import Plan
from tools.simulation.step import Step, random_step

Mix = Callable[[random.Random, Plan], Plan]

# Values of the limits of source/limits.py and, behind a dot, deadletter/page_reader.py: small ones, and our own.
# Seconds are no sizes: the model expects that each trigger looks at all.
LIMITS: Mapping[str, tuple[int, ...]] = {
    "smallest_task": (1, 3, 20, 10_000),
    "first_page": (1, 2, 5, 200),
    "largest_page": (1, 2, 8, 8_000),
    "page_bytes": (1, 60, 600, 4 << 20),
    "max_reply_bytes": (100, 1_000, 32 << 20),
    "pending_page": (1, 2, 7, 10_000),
    "pending_round": (1, 3, 20, 100_000),
    "pending_streams": (1, 2, 2_000),
    "reserve_step": (1, 3, 20, 10_000),
    "reserve_round": (1, 6, 40, 10_000),
    "claim_page": (1, 3, 1_000),
    "returned_entries": (1, 3, 20_000),
    "sweep_streams": (1, 2, 500),
    "sampled_entries": (1, 3, 50),
    "sampled_at_once": (1, 4, 1_000),
    "sampled_bytes": (1, 100, 64 << 10),
    "note_page": (1, 2, 500),
    "dead_letters.first_page": (1, 2, 200),
    "dead_letters.largest_page": (1, 3, 2_000),
    "dead_letters.page_bytes": (1, 100, 4 << 20),
    "dead_letters.max_bytes": (100, 1_000, 64 << 20),
    "dead_letters.post_entries": (1, 2, 500),
    "dead_letters.post_bytes": (1, 100, 8 << 20),
}
_LARGE = ("30", "100", "1000")  # of maxEntriesPerTrigger


def with_limits(limits: Limits, drawn: Mapping[str, int]) -> Limits:
    """Return these limits with drawn ones in their place."""
    own = {name: value for name, value in drawn.items() if "." not in name}
    letters = {name.partition(".")[2]: value for name, value in drawn.items() if "." in name}
    return replace(limits, **own, dead_letters=replace(limits.dead_letters, **letters))  # type: ignore[arg-type]


def _with_lists(chance: random.Random, plan: Plan) -> Plan:
    """Streams leave option `streams` and come back, amid kills, cut batches and older checkpoints. Some runs are
    without maxDeliveries, and later ones with it, or the other way round."""
    if "archivePath" in plan.setup.options:  # what is removed meanwhile is no concern of the archive
        return plan
    names = STREAMS[: max(2, plan.setup.streams)]
    is_cut, is_set_back = chance.random() < 0.6, chance.random() < 0.4
    given = {"streams": ",".join(names), **({"maxDeliveries": chance.choice(["1", "1", "2"])} if is_cut else {})}

    def changed(options: Mapping[str, str]) -> dict[str, str]:
        for name, value in given.items():
            options = with_option(options, name, value)
        # With an older checkpoint the query would report what it has removed itself.
        return {name: value for name, value in options.items() if not (is_set_back and name == "onCommit")}

    def deadly(count: int) -> list[Step]:
        return [one for _ in range(count) for one in (random_step(chance, "crash", 0), Step("trigger"))]

    def between() -> list[Step]:
        """What happens before a list changes."""
        kinds = ["crash", "crash", "kill", "add", "add", "fail", "idle"]
        kinds += ["deliver_often", "deliver_seldom"] if is_cut else ["deliver_seldom"]
        kinds += ["rollback", "lose_commits"] if is_set_back else []
        match kind := chance.choice(kinds):
            case "crash":
                return deadly(chance.choice([1, 1, 2, 3]))
            case "kill":
                return [random_step(chance, "kill", chance.randint(1, 60)), Step("trigger")]
            case "idle":
                return [Step("trigger")] * chance.choice([1, 2, 3])
            case "rollback" | "lose_commits":
                return [random_step(chance, kind, 0), Step("trigger")]
            case "fail":
                return [random_step(chance, "fail", chance.randint(20, 120)), Step("trigger")]
            case _:
                return [random_step(chance, kind, 0), *[Step("trigger")] * chance.choice([0, 1, 1])]

    steps = [replace(step, options=tuple(changed(dict(step.options)).items())) if step.options else step
             for step in plan.steps]  # fmt: skip
    for _ in range(chance.choice([1, 1, 2, 3])):
        place, choice = chance.randint(0, len(steps)), chance.random()  # most is of one stream
        add = Step("add", 0, choice, chance.random())
        delay = chance.choice([0, 0, chance.randint(1, 60)])
        leave = replace(random_step(chance, "leave_out", delay), amount=chance.choice([0.0, 0.0, 0.9]))
        leave = replace(leave, choice=choice) if chance.random() < 0.7 else leave
        block = [add, *[one for _ in range(chance.choice([0, 1, 1, 2])) for one in between()], leave]
        block += [Step("trigger")] * (bool(delay) + chance.choice([0, 1]))
        block += [one for _ in range(chance.choice([0, 1, 2, 3])) for one in between()]
        back = random_step(chance, "put_back", chance.choice([0, 0, chance.randint(1, 60)]))
        block += [back, *[Step("trigger")] * chance.choice([1, 2, 3])]
        steps[place:place] = block
    setup = replace(plan.setup, streams=len(names), options=changed(plan.setup.options))
    return replace(plan, setup=setup, steps=tuple(steps))


def _with_limits(chance: random.Random, plan: Plan) -> Plan:
    """Sizes of requests, and larger batches."""
    names = chance.sample(sorted(LIMITS), chance.choice([1, 2, 4, 8, len(LIMITS)]))
    limits = {name: chance.choice(LIMITS[name]) for name in names}
    options, steps = plan.setup.options, [*plan.steps]
    if chance.random() < 0.5 and "archivePath" not in options:
        options = with_option(options, "maxEntriesPerTrigger", chance.choice(_LARGE))
    for _ in range(chance.choice([1, 2, 3])):
        place = chance.randint(0, len(steps))
        steps[place:place] = [random_step(chance, "pour", 0), *[Step("trigger")] * chance.choice([0, 1, 2])]
    setup = replace(plan.setup, limits=limits, options=options, before=chance.choice([0, 12, 60, 150]))
    return replace(plan, setup=setup, steps=tuple(steps))


def _with_sink_elsewhere(chance: random.Random, plan: Plan) -> Plan:
    """The exactly-once sink writes to a server of its own. What happens to the source's server does not happen to it.

    In most plans the query is killed amid its batches.
    """
    steps = [*plan.steps]
    for _ in range(chance.choice([0, 1, 2, 3])):
        place = chance.randint(0, len(steps))
        end = random_step(
            chance, *chance.choice([("crash", 0), ("lose_commits", 0), ("kill", chance.randint(60, 200))])
        )
        steps[place:place] = [random_step(chance, "add", 0), end, *[Step("trigger")] * chance.choice([1, 2])]
    return replace(plan, setup=replace(plan.setup, sink="once", sink_elsewhere=True), steps=tuple(steps))


def _with_lost_writes(chance: random.Random, plan: Plan) -> Plan:
    """Failovers to a replica without the last writes, at one to three places."""
    steps = [*plan.steps]
    for _ in range(chance.choice([1, 1, 2, 3])):
        place = chance.randint(0, len(steps))
        delay = chance.choice([0, chance.randint(1, 12), chance.randint(1, 60)])
        fail_over = random_step(chance, chance.choice(["fail_over"] * 3 + ["lag"]), delay)
        steps[place:place] = [fail_over, *[Step("trigger")] * chance.choice([0, 1, 2])]
    return replace(plan, steps=tuple(steps))


def _with_refusals(chance: random.Random, plan: Plan) -> Plan:
    """Commands that the server refuses, at one to four places."""
    steps = [*plan.steps]
    for _ in range(chance.choice([1, 1, 2, 4])):
        place = chance.randint(0, len(steps))
        refusal = random_step(chance, "refuse", chance.choice([0, chance.randint(1, 12), chance.randint(1, 60)]))
        steps[place:place] = [refusal, *([Step("trigger")] * chance.choice([0, 1, 2]))]
    return replace(plan, steps=tuple(steps))


def _unmarked(chance: random.Random, plan: Plan) -> Plan:
    """The same plan. Commit marks are not judged (marks.py)."""
    return replace(plan, setup=replace(plan.setup, judges_marks=False))


def is_drawn(seed: int, name: str) -> bool:
    """Whether the plan of this seed has a mix of SHARES."""
    return random.Random(f"{seed} drawn {name}").random() < SHARES[name]


def _drawn(chance: random.Random, plan: Plan) -> Plan:
    """Each mix of SHARES in its share of the plans; in a tenth of them two drivers, and nothing else."""
    seed = plan.setup.seed
    if random.Random(f"{seed} drawn driver").random() < _WITH_A_SECOND_DRIVER:
        return with_a_second_driver(random.Random(f"{seed} driver"), plan)
    for name in SHARES:
        if is_drawn(seed, name):
            plan = MIXES[name](random.Random(f"{seed} {name}"), plan)
    return plan


_WITH_A_SECOND_DRIVER = 0.1
SHARES: Mapping[str, float] = {
    "lists": 0.2,
    "limits": 0.05,
    "elsewhere": 0.02,
    "lost": 0.5,
    "refused": 0.3,
    "clock": 0.2,
}
MIXES: Mapping[str, Mix] = {
    "lists": _with_lists,
    "limits": _with_limits,
    "elsewhere": _with_sink_elsewhere,
    "lost": _with_lost_writes,
    "refused": _with_refusals,
    "clock": with_clocks,
    "driver": with_a_second_driver,
    "drawn": _drawn,
    "unmarked": _unmarked,
}
