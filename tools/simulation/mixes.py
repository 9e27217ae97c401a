"""Mixes: what few plans have (SELDOM), or all of them with `--add NAME` (MIXES), setup included. Pure.

Each has a generator of its own, so the plans of other mixes stay as they are. `drawn` has each of the others in its
share of the plans, as the mix itself makes them: a seed that fails with `drawn` can be told with the one that it has.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from spark_streams.connector.source.limits import Limits
from tools.servers.server import Server
from tools.simulation.fates import FATES
from tools.simulation.in_process.server import ProcessServer
from tools.simulation.options import (
    ARCHIVE,
    CLAIM_IDLE,
    DEAD,
    OF_THE_START,
    STREAMS,
    VALUES,
    with_all,
    with_option,
    without,
)
from tools.simulation.setup import NEVER_AHEAD, Plan, Step, random_step, triggers, woven

Mix = Callable[[random.Random, Plan], Plan]
Changed = Callable[[Mapping[str, str]], Mapping[str, str]]


def _at_places(often: Sequence[int], options: Changed = dict) -> Callable[[Callable[[random.Random], list[Step]]], Mix]:
    """Make a mix of a function that returns steps: it puts them into a plan, as often as one of these numbers says.
    options: of the plan then."""

    def mix_of(steps: Callable[[random.Random], list[Step]]) -> Mix:
        def mix(chance: random.Random, plan: Plan) -> Plan:
            plan = plan.with_options(options)
            return replace(plan, steps=woven(chance, plan.steps, often, lambda: steps(chance)))

        return mix

    return mix_of


def _delay(chance: random.Random) -> int:
    return chance.choice([0, chance.randint(1, 12), chance.randint(1, 60)])


def _without_no_ack(options: Mapping[str, str]) -> dict[str, str]:
    """A query with noAck refuses other consumers, and what they release."""
    return without(options, "noAck")


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
        # With an older checkpoint the query would report what it has removed itself.
        return without(with_all(options, given), "onCommit") if is_set_back else with_all(options, given)

    def between() -> list[Step]:
        """What happens before a list changes."""
        kinds = ["crash", "crash", "kill", "add", "add", "fail", "idle"]
        kinds += ["deliver_often", "deliver_seldom"] if is_cut else ["deliver_seldom"]
        kinds += ["rollback", "lose_commits"] if is_set_back else []
        match kind := chance.choice(kinds):
            case "crash":
                deaths = range(chance.choice([1, 1, 2, 3]))
                return [one for _ in deaths for one in (random_step(chance, "crash", 0), Step("trigger"))]
            case "kill":
                return [random_step(chance, "kill", chance.randint(1, 60)), Step("trigger")]
            case "idle":
                return triggers(chance, 1, 2, 3)
            case "rollback" | "lose_commits":
                return [random_step(chance, kind, 0), Step("trigger")]
            case "fail":
                return [random_step(chance, "fail", chance.randint(20, 120)), Step("trigger")]
            case _:
                return [random_step(chance, kind, 0), *triggers(chance, 0, 1, 1)]

    def block() -> list[Step]:
        choice = chance.random()  # most is of one stream
        add = Step("add", 0, choice, chance.random())
        delay = chance.choice([0, 0, chance.randint(1, 60)])
        leave = replace(random_step(chance, "leave_out", delay), amount=chance.choice([0.0, 0.0, 0.9]))
        leave = replace(leave, choice=choice) if chance.random() < 0.7 else leave
        block = [add, *[one for _ in range(chance.choice([0, 1, 1, 2])) for one in between()], leave]
        block += [Step("trigger")] * (bool(delay) + chance.choice([0, 1]))
        block += [one for _ in range(chance.choice([0, 1, 2, 3])) for one in between()]
        back = random_step(chance, "put_back", chance.choice([0, 0, chance.randint(1, 60)]))
        return [*block, back, *triggers(chance, 1, 2, 3)]

    plan = plan.with_options(changed)
    setup = replace(plan.setup, streams=len(names))
    return replace(plan, setup=setup, steps=woven(chance, plan.steps, [1, 1, 2, 3], block))


def _with_limits(chance: random.Random, plan: Plan) -> Plan:
    """Sizes of requests, and larger batches."""
    names = chance.sample(sorted(LIMITS), chance.choice([1, 2, 4, 8, len(LIMITS)]))
    limits = {name: chance.choice(LIMITS[name]) for name in names}
    options = plan.setup.options
    if chance.random() < 0.5 and "archivePath" not in options:
        options = with_option(options, "maxEntriesPerTrigger", chance.choice(_LARGE))
    steps = woven(chance, plan.steps, [1, 2, 3], lambda: [random_step(chance, "pour", 0), *triggers(chance, 0, 1, 2)])
    setup = replace(plan.setup, limits=limits, options=options, before=chance.choice([0, 12, 60, 150]))
    return replace(plan, setup=setup, steps=steps)


def _with_sink_elsewhere(chance: random.Random, plan: Plan) -> Plan:
    """The exactly-once sink writes to a server of its own. What happens to the source's server does not happen to it.

    In most plans the query is killed amid its batches.
    """

    def block() -> list[Step]:
        kind, delay = chance.choice([("crash", 0), ("lose_commits", 0), ("kill", chance.randint(60, 200))])
        end = random_step(chance, kind, delay)
        return [random_step(chance, "add", 0), end, *triggers(chance, 1, 2)]

    setup = replace(plan.setup, sink="once", sink_elsewhere=True)
    return replace(plan, setup=setup, steps=woven(chance, plan.steps, [0, 1, 2, 3], block))


@_at_places([1, 1, 2, 3])
def _with_lost_writes(chance: random.Random) -> list[Step]:
    """Failovers to a replica without the last writes, at one to three places."""
    delay = _delay(chance)
    fail_over = random_step(chance, chance.choice(["fail_over"] * 3 + ["lag"]), delay)
    return [fail_over, *triggers(chance, 0, 1, 2)]


@_at_places([1, 1, 2, 4])
def _with_refusals(chance: random.Random) -> list[Step]:
    """Commands that the server refuses, at one to four places."""
    return [random_step(chance, "refuse", _delay(chance)), *triggers(chance, 0, 1, 2)]


@_at_places([1, 1, 2, 4])
def _with_renewals(chance: random.Random) -> list[Step]:
    """New checkpoints for the used group, at one to four places."""
    return [Step("renew"), *triggers(chance, 0, 1, 2)]


@_at_places(range(3, 9))
def _with_questions(chance: random.Random) -> list[Step]:
    """Questions where entries are, at three to eight places."""
    return [Step("where", 0, chance.random(), chance.random())]


# Weight of each kind among the faults that are added to a plan.
_FAULTS: Mapping[str, int] = {"slow": 3, "part": 4, "fail_over": 2, "hurry": 2}


def _with_faults(chance: random.Random, plan: Plan) -> Plan:
    """Faults that need the plan's clock, or that older seeds do not know, at one to four places."""
    steps = [*plan.steps]
    for kind in chance.choices([*_FAULTS], [*_FAULTS.values()], k=chance.choice([1, 1, 2, 4])):
        place, fault = chance.randint(0, len(steps)), random_step(chance, kind, 0)
        steps[place:place] = [replace(fault, delay=_delay(chance)), *triggers(chance, 0, 1, 2)]
    return replace(plan, steps=tuple(steps))


def _with_few_arguments(chance: random.Random, plan: Plan) -> Plan:
    """A server that takes only short requests."""
    return replace(plan, setup=replace(plan.setup, arguments=chance.choice([12, 20, 40])))


def _with_newer_watch(chance: random.Random, plan: Plan) -> Plan:
    """A server whose WATCH of a stream is broken by commands of its groups."""
    return replace(plan, setup=replace(plan.setup, newer_watch=True))


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
    "patterns": 0.1,
    "starts": 0.1,
    "delays": 0.05,
    "hands": 0.1,
    "older": 0.05,
    "redriven": 0.05,
    "outputs": 0.1,
    "cluster": 0.05,
}
MIXES: Mapping[str, Mix] = {
    "renew": _with_renewals,
    "faults": _with_faults,
    "where": _with_questions,
    "lists": _with_lists,
    "limits": _with_limits,
    "elsewhere": _with_sink_elsewhere,
    "lost": _with_lost_writes,
    "refused": _with_refusals,
    "clock": with_clocks,
    "driver": with_a_second_driver,
    **FATES,
    "drawn": _drawn,
    "unmarked": _unmarked,
    "arguments": _with_few_arguments,
    "watch": _with_newer_watch,
}


# -- mixes that few plans have without `--add`, too --------------------------------------------------------------------


_NOTHING_AHEAD = ("maxDeliveries", "noAck", "maxBytesPerTrigger", "minEntriesPerTrigger")
_A_GUEST = ("read", "guest", "die")
_SMALL_BATCHES = ("maxEntriesPerTrigger", "maxBytesPerTrigger", "minPartitions")


def _with_late_streams(chance: random.Random, plan: Plan) -> Plan:
    """A stream is added to option `streams`, and the query is killed before its group exists. `latest` stays where the
    query has found it."""
    names = STREAMS[: max(2, plan.setup.streams)]

    def changed(options: Mapping[str, str], streams: Sequence[str] = names) -> dict[str, str]:
        return with_option(with_option(options, "startingOffsets", "latest"), "streams", ",".join(streams))

    late = chance.randrange(len(names))
    of_the_late = (late + 0.5) / len(names)
    others = changed(changed(plan.setup.options), [*names[:late], *names[late + 1 :]])
    plan = plan.with_options(changed)
    kill = [random_step(chance, chance.choice(["kill", "kill", "cut"]), chance.randint(1, 30))]
    if chance.random() < 0.6:
        kill = [replace(kill[0], kind="kill", delay=1, at="XGROUP CREATE")]
    block = [Step("restart", options=tuple(others.items())), Step("trigger"), Step("add", 0, chance.random(), 0.9)]
    block += [Step("add", 0, of_the_late, chance.random()), Step("trigger")]
    block += [Step("restart", options=tuple(plan.setup.options.items())), *kill, Step("trigger")]
    block += [Step("add", 0, of_the_late, chance.random()), Step("trigger"), Step("trigger")]
    steps = [*plan.steps]
    place = chance.randint(0, len(steps) // 2)
    steps[place:place] = block
    return replace(plan, setup=replace(plan.setup, streams=len(names)), steps=tuple(steps))


@_at_places([1, 1, 2], _without_no_ack)
def _with_old_entries(chance: random.Random) -> list[Step]:
    """A batch has entries that were handed over, or that an earlier checkpoint has left. The query is killed while the
    next one is planned, or while its tasks run."""
    choice = chance.random()  # of one stream
    if chance.random() < 0.7:
        block = [Step("trigger"), Step("add", 0, choice, 0.6), Step("read", 0, choice, 0.4), Step("trigger"),
                 Step("give", 0, choice, 0.99)]  # fmt: skip
    else:
        block = [Step("add", 0, choice, 0.6), Step("kill", 1, at="XPENDING"), Step("trigger"), Step("renew")]
    kill = chance.choice([*[Step("kill", 1, at="XACK")] * 3, random_step(chance, "kill", chance.randint(1, 60))])
    block += [Step("add", 0, choice, 0.2), Step("trigger"), Step("add", 0, choice, 0.2), kill]
    return [*block, *triggers(chance, 1, 2, 3)]


def _with_letters(chance: random.Random, plan: Plan) -> Plan:
    """Entries that do not fit, and redrives of the dead letters that most queries make of them."""
    mode = chance.choice(["DEADLETTER"] * 7 + ["DROPMALFORMED", "FAILFAST", ""])
    plan = plan.with_options(lambda options: with_option(options, "mode", mode)) if mode else plan
    steps = [*plan.steps]
    for _ in range(chance.choice([1, 2, 3])):
        place = chance.randint(0, len(steps) // 2)
        steps[place:place] = [random_step(chance, "misfit"), *triggers(chance, 1, 2)]
    for _ in range(chance.choice([1, 2, 3, 5]) if mode == "DEADLETTER" else 0):
        place = chance.randint(len(steps) // 2, len(steps))
        steps[place:place] = [random_step(chance, "redrive"), *triggers(chance, 0, 0, 1, 2)]
    return replace(plan, setup=replace(plan.setup, has_values=True), steps=tuple(steps))


@_at_places([1, 2, 4], _without_no_ack)
def _with_releases(chance: random.Random) -> list[Step]:
    """Entries that other consumers of the group read and release."""
    choice, how = chance.random(), chance.random()  # of the same stream, by the same consumer
    pair = [replace(random_step(chance, kind), choice=choice, how=how) for kind in ("read", "release")]
    return [random_step(chance, "add"), *pair, *triggers(chance, 0, 1, 2)]


def _with_archive(chance: random.Random, plan: Plan) -> Plan:
    """An archive that the query reads before its streams, while nothing else than kills and broken connections happens:
    what others remove from the streams then is no concern of the archive."""
    options = with_option(plan.setup.options, "archivePath", ARCHIVE)
    name = chance.choice([*VALUES])
    more = with_option(options, name, chance.choice(VALUES[name]))
    if options.keys() <= more.keys() and name not in ("streams", "streamsPattern", *OF_THE_START):
        options = more
    steps = [Step("add", 0, chance.random(), chance.random()) for _ in range(chance.choice([1, 3, 5]))]
    steps += [random_step(chance, "archive", 0)]
    kinds = {"add": 5, "trigger": 10, "archive": 1, "kill": 5, "fail": 2, "twin": 2, "cut": 2, "away": 1, "drain": 1}
    for kind in chance.choices(list(kinds), list(kinds.values()), k=chance.randint(6, 24)):
        steps.append(
            random_step(chance, kind, 0) if kind in ("trigger", "drain", "twin") else random_step(chance, kind)
        )
    setup = replace(plan.setup, options=options, before=chance.choice([3, 12]))
    return replace(plan, setup=setup, steps=tuple(steps))


def _with_successors(chance: random.Random, plan: Plan) -> Plan:
    """Batches of several tasks that write to one stream of the exactly-once sink. The query is killed amid them, and
    its successor runs them again, with the same partitions or others."""
    plan = plan.with_options(lambda options: with_option(options, "startingOffsets", "earliest"))
    options = without(plan.setup.options, *_SMALL_BATCHES)

    def partitions() -> dict[str, str]:
        return with_option(options, "entriesPerPartition", chance.choice(VALUES["entriesPerPartition"]))

    def block() -> list[Step]:
        block = [Step("add", 0, chance.random(), chance.random())]
        for _ in range(chance.choice([1, 1, 2])):
            kill = random_step(chance, "kill", chance.randint(20, 160))
            if chance.random() < 0.5:
                kill = replace(kill, kind="restart", options=tuple(partitions().items()))
            fail = [random_step(chance, "fail", chance.randint(20, 120))] if chance.random() < 0.5 else []
            if fail and chance.random() < 0.5:  # amid the chunks of the sink's tasks, in both runs
                kill = replace(kill, delay=chance.randint(2, 4), at="HLEN")
                fail = [replace(fail[0], delay=chance.randint(1, 4), at="HLEN")]
            block += [kill, Step("trigger"), *fail, Step("trigger")]
        return block

    steps, options = woven(chance, plan.steps, [1, 2, 3], block), partitions()
    setup = replace(plan.setup, sink="once", before=chance.choice([12, 20]), options=options)
    return replace(plan, setup=setup, steps=steps)


def _with_other_machines(chance: random.Random, plan: Plan) -> Plan:
    """Queries of the same group on another machine: with the query's consumer, or with another one."""
    has_guests = "noAck" not in plan.setup.options and chance.random() < 0.7
    if has_guests:
        plan = plan.with_options(lambda options: with_option(options, "claimIdle", CLAIM_IDLE))

    def block() -> list[Step]:
        kind = chance.choice(["beside", "instead", *(["guest"] * 2 if has_guests else [])])
        choice, how = chance.random(), chance.random()
        if kind == "beside":
            block = [random_step(chance, "elsewhere"), Step("trigger"), Step("trigger")]
        elif kind == "instead":
            block = [Step("kill"), random_step(chance, "elsewhere", 0), *triggers(chance, 1, 2)]
        else:
            read, guest, die = (replace(random_step(chance, one, 0), choice=choice, how=how) for one in _A_GUEST)
            block = [Step("add", 0, choice, chance.random()), read, guest, die, Step("trigger"), Step("trigger")]
        if chance.random() < 0.7:
            block += [random_step(chance, "perish", 0), Step("trigger")]
        return block

    return replace(plan, steps=woven(chance, plan.steps, [1, 2, 3], block))


def _with_a_lag(chance: random.Random, plan: Plan) -> Plan:
    """A failover to a replica without the last writes, while the background thread reserves a batch ahead, and then
    acknowledges the one before."""
    options = without(plan.setup.options, *_NOTHING_AHEAD)
    options = with_option(options, "maxEntriesPerTrigger", chance.choice(["1", "2", "4"]))

    def block() -> list[Step]:
        add = Step("add", 0, chance.random(), 0.99)
        return [add, Step("trigger"), random_step(chance, "lag", 0), *triggers(chance, 2, 3, 4)]

    setup = replace(plan.setup, ahead=1, before=12, options=options)
    return replace(plan, setup=setup, steps=woven(chance, plan.steps, [1, 2, 3], block))


def _with_deadly_batches(chance: random.Random, plan: Plan) -> Plan:
    """Batches that kill their query again and again, until their entries are set aside. In some plans, entries of them
    do not fit."""
    has_letters = chance.random() < 0.6
    wanted = {"maxDeliveries": chance.choice(["1", "2"]), **({"mode": "DEADLETTER"} if has_letters else {})}

    def block() -> list[Step]:
        block = [Step("add", 0, chance.random(), chance.random())]
        block += [random_step(chance, "misfit", 0)] * (chance.choice([0, 1, 2]) if has_letters else 0)
        for _ in range(chance.choice([1, 2, 3])):
            block += [random_step(chance, "crash", 0), Step("trigger")]
        return [*block, *triggers(chance, 1, 3, 6)]

    plan = plan.with_options(lambda options: with_all(options, wanted))
    setup = replace(plan.setup, has_values=has_letters or plan.setup.has_values)
    return replace(plan, setup=setup, steps=woven(chance, plan.steps, [1, 1, 2], block))


@_at_places([1, 1, 2])
def _with_a_part_put_back(chance: random.Random) -> list[Step]:
    """While no query runs, one stream with the keys beside it and the dead letters, or all keys, become as an older
    copy has them. So it is after a failover of one of a cluster's masters."""
    between: list[Step] = []
    for _ in range(chance.choice([1, 2, 3])):
        between += [random_step(chance, "add", 0), Step("trigger")]
    put_back = random_step(chance, "import_backup", 0)
    put_back = replace(put_back, how=round(0.25 + 0.75 * put_back.how, 3))  # never without the keys beside it
    return [Step("backup"), *between, Step("kill"), put_back, Step("trigger"), Step("trigger")]


@_at_places([1, 1, 2], _without_no_ack)
def _with_handovers(chance: random.Random) -> list[Step]:
    """Entries that another consumer has read are handed over one after the other, when the query is above them: those
    of one batch of the second backlog, and more of them before that is acknowledged."""
    choice = chance.random()  # of one stream
    read = Step("read", 0, choice, 0.9)
    block = [Step("trigger"), Step("add", 0, choice, 0.6), read, Step("add", 0, choice, 0.1), Step("trigger")]
    for _ in range(chance.choice([2, 3, 4])):
        give = random_step(chance, "give", chance.choice([0, chance.randint(1, 40)]))
        block += [replace(give, choice=choice, amount=0.3 * give.amount), Step("trigger")]
    return [*block, Step("trigger")]


def _with_a_strict_successor(chance: random.Random, plan: Plan) -> Plan:
    """Entries leave a batch that a lenient query reads. Then it is killed, and its successor is strict."""
    strict = without(plan.setup.options, "failOnDataLoss")
    lenient = with_option(strict, "failOnDataLoss", "false")

    def block() -> list[Step]:
        block = [Step("restart", options=tuple(lenient.items())), Step("trigger"), random_step(chance, "add", 0)]
        delete = random_step(chance, "delete", chance.randint(1, 3))
        block += [replace(delete, at="XRANGE", amount=round(chance.random(), 3)), Step("trigger")]
        delay = chance.choice([0, chance.randint(1, 20)])
        return [*block, Step("restart", delay, options=tuple(strict.items())), *[Step("trigger")] * 2]

    return replace(plan, steps=woven(chance, plan.steps, [1, 2], block))


# Name → (how many of the plans have it, what puts it into a plan).
SELDOM: Mapping[str, tuple[float, Mix]] = {
    "letters": (0.08, _with_letters),
    "releases": (0.06, _with_releases),
    "successors": (0.08, _with_successors),
    "other machines": (0.08, _with_other_machines),
    "a lag": (0.1, _with_a_lag),
    "handovers": (0.08, _with_handovers),
    "a strict successor": (0.06, _with_a_strict_successor),
    "deadly batches": (0.08, _with_deadly_batches),
    "a part put back": (0.06, _with_a_part_put_back),
    "late streams": (0.05, _with_late_streams),
    "old entries and a kill": (0.05, _with_old_entries),
    "archive": (0.06, _with_archive),  # the last one: it replaces all steps
}
