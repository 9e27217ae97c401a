"""Mixes: what `--add NAME` puts into a whole plan, its setup included. Pure.

Each has a generator of its own, so the plans of other mixes stay as they are. `drawn` has each of the others in its
share of the plans, as the mix itself makes them: a seed that fails with `drawn` can be told with the one that it has.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace

from spark_streams.connector.source.limits import Limits
from tools.servers.server import Server
from tools.simulation.in_process.server import ProcessServer
from tools.simulation.options import DEAD, STREAMS, with_option
from tools.simulation.setup import Plan, Step, random_step

_OF_THE_CLOCK: Mapping[str, int] = {"clock_back": 6, "clock_ahead": 3, "fail_over_apart": 3, "restore_apart": 2}
_OVER_A_NETWORK = 2_000  # microseconds that a command takes


def with_clocks(chance: random.Random, plan: Plan) -> Plan:
    """Move the server's clock at one to four places: while entries are reserved ahead, in flight or handed over. In
    half of the plans a command takes as long as over a network."""
    steps = [*plan.steps]
    if plan.setup.drivers > 1:  # a clock that is set ahead ends the session of a driver that stands still
        for _ in range(chance.choice([1, 1, 2])):
            steps.insert(chance.randint(0, len(steps)), random_step(chance, "clock_back", 0))
        return replace(plan, steps=tuple(steps))
    for kind in chance.choices(list(_OF_THE_CLOCK), list(_OF_THE_CLOCK.values()), k=chance.choice([1, 1, 2, 4])):
        place = chance.randint(0, len(steps))
        block = [random_step(chance, "add", 0), Step("trigger")] if chance.random() < 0.6 else []
        block += [random_step(chance, "backup", 0), Step("trigger")] if kind == "restore_apart" else []
        block += [random_step(chance, "kill")] if chance.random() < 0.3 else []
        block += [random_step(chance, kind), *[Step("trigger")] * chance.choice([0, 1, 2])]
        block += [random_step(chance, "give", 0), Step("trigger")] if chance.random() < 0.2 else []
        steps[place:place] = block
    setup = replace(plan.setup, command_us=chance.choice([plan.setup.command_us, _OVER_A_NETWORK]))
    return replace(plan, setup=setup, steps=tuple(steps))


def is_behind(server: Server) -> bool:
    """Whether the server's clock shows a time that it had already shown before it was set back."""
    return isinstance(server, ProcessServer) and server.core.clock.unix_ms() <= server.core.clock.shown


def seconds_set_back(server: Server) -> float:
    """Return by how many seconds the server's clock was set back in all: what waits for a time of it waits longer."""
    return server.core.clock.set_back / 1e9 if isinstance(server, ProcessServer) else 0.0


# -- two drivers on one group (drivers.py) -----------------------------------------------------------------------------


NEVER_AHEAD = 1 << 62
_OF_TWO_DRIVERS: Mapping[str, int] = {"drive": 20, "drive_add": 6, "drive_wait": 5, "drive_kill": 4, "drive_crash": 2}
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
    for kind in chance.choices([*_OF_TWO_DRIVERS], [*_OF_TWO_DRIVERS.values()], k=chance.randint(8, 30)):
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


# -- the other mixes ---------------------------------------------------------------------------------------------------


Mix = Callable[[random.Random, Plan], Plan]

# Values of the limits of source/limits.py and, behind a dot, deadletter/post.py: small ones, and our own.
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
    """The same plan. Commit marks are not judged (verdict.py)."""
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
