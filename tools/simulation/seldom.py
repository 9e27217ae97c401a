"""Powers that few plans have: each is put into plans by a generator of its own, so that the others stay as they are."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tools.simulation.options import ARCHIVE, CLAIM_IDLE, OF_THE_START, STREAMS, VALUES, with_option
from tools.simulation.setup import Plan, Step, random_step


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


# -- all other ones ----------------------------------------------------------------------------------------------------


_NOTHING_AHEAD = ("maxDeliveries", "noAck", "maxBytesPerTrigger", "minEntriesPerTrigger")
_A_GUEST = ("read", "guest", "die")
_SMALL_BATCHES = ("maxEntriesPerTrigger", "maxBytesPerTrigger", "minPartitions")


def _with_letters(chance: random.Random, plan: Plan) -> Plan:
    """Entries that do not fit, and redrives of the dead letters that most queries make of them."""
    mode = chance.choice(["DEADLETTER"] * 7 + ["DROPMALFORMED", "FAILFAST", ""])

    def changed(options: Mapping[str, str]) -> dict[str, str]:
        return with_option(options, "mode", mode) if mode else {**options}

    steps = [replace(step, options=tuple(changed(dict(step.options)).items())) if step.options else step
             for step in plan.steps]  # fmt: skip
    for _ in range(chance.choice([1, 2, 3])):
        place = chance.randint(0, len(steps) // 2)
        steps[place:place] = [random_step(chance, "misfit"), *([Step("trigger")] * chance.choice([1, 2]))]
    for _ in range(chance.choice([1, 2, 3, 5]) if mode == "DEADLETTER" else 0):
        place = chance.randint(len(steps) // 2, len(steps))
        steps[place:place] = [random_step(chance, "redrive"), *([Step("trigger")] * chance.choice([0, 0, 1, 2]))]
    return replace(plan, setup=replace(plan.setup, options=changed(plan.setup.options), has_values=True),
                   steps=tuple(steps))  # fmt: skip


def _with_releases(chance: random.Random, plan: Plan) -> Plan:
    """Entries that other consumers of the group read and release."""

    def changed(options: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in options.items() if name != "noAck"}  # it refuses released entries

    steps = [replace(step, options=tuple(changed(dict(step.options)).items())) for step in plan.steps]
    for _ in range(chance.choice([1, 2, 4])):
        place = chance.randint(0, len(steps))
        choice, how = chance.random(), chance.random()  # of the same stream, by the same consumer
        pair = [replace(random_step(chance, kind), choice=choice, how=how) for kind in ("read", "release")]
        steps[place:place] = [random_step(chance, "add"), *pair, *([Step("trigger")] * chance.choice([0, 1, 2]))]
    return replace(plan, setup=replace(plan.setup, options=changed(plan.setup.options)), steps=tuple(steps))


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
    options = with_option(plan.setup.options, "startingOffsets", "earliest")
    options = {name: value for name, value in options.items() if name not in _SMALL_BATCHES}
    steps = [replace(step, options=tuple(with_option(dict(step.options), "startingOffsets", "earliest").items()))
             if step.options else step for step in plan.steps]  # fmt: skip
    for _ in range(chance.choice([1, 2, 3])):
        place = chance.randint(0, len(steps))
        block = [Step("add", 0, chance.random(), chance.random())]
        for _ in range(chance.choice([1, 1, 2])):
            kill = random_step(chance, "kill", chance.randint(20, 160))
            if chance.random() < 0.5:
                others = with_option(options, "entriesPerPartition", chance.choice(VALUES["entriesPerPartition"]))
                kill = replace(kill, kind="restart", options=tuple(others.items()))
            fail = [random_step(chance, "fail", chance.randint(20, 120))] if chance.random() < 0.5 else []
            if fail and chance.random() < 0.5:  # amid the chunks of the sink's tasks, in both runs
                kill = replace(kill, delay=chance.randint(2, 4), at="HLEN")
                fail = [replace(fail[0], delay=chance.randint(1, 4), at="HLEN")]
            block += [kill, Step("trigger"), *fail, Step("trigger")]
        steps[place:place] = block
    options = with_option(options, "entriesPerPartition", chance.choice(VALUES["entriesPerPartition"]))
    setup = replace(plan.setup, sink="once", before=chance.choice([12, 20]), options=options)
    return replace(plan, setup=setup, steps=tuple(steps))


def _with_other_machines(chance: random.Random, plan: Plan) -> Plan:
    """Queries of the same group on another machine: with the query's consumer, or with another one."""
    steps = [*plan.steps]
    options, has_guests = plan.setup.options, "noAck" not in plan.setup.options and chance.random() < 0.7
    if has_guests:
        options = with_option(options, "claimIdle", CLAIM_IDLE)
        steps = [replace(step, options=tuple(with_option(dict(step.options), "claimIdle", CLAIM_IDLE).items()))
                 if step.options else step for step in steps]  # fmt: skip
    for _ in range(chance.choice([1, 2, 3])):
        place = chance.randint(0, len(steps))
        kind = chance.choice(["beside", "instead", *(["guest"] * 2 if has_guests else [])])
        choice, how = chance.random(), chance.random()
        if kind == "beside":
            block = [random_step(chance, "elsewhere"), Step("trigger"), Step("trigger")]
        elif kind == "instead":
            block = [Step("kill"), random_step(chance, "elsewhere", 0), *[Step("trigger")] * chance.choice([1, 2])]
        else:
            read, guest, die = (replace(random_step(chance, one, 0), choice=choice, how=how) for one in _A_GUEST)
            block = [Step("add", 0, choice, chance.random()), read, guest, die, Step("trigger"), Step("trigger")]
        if chance.random() < 0.7:
            block += [random_step(chance, "perish", 0), Step("trigger")]
        steps[place:place] = block
    return replace(plan, setup=replace(plan.setup, options=options), steps=tuple(steps))


def _with_a_lag(chance: random.Random, plan: Plan) -> Plan:
    """A failover to a replica without the last writes, while the background thread reserves a batch ahead, and then
    acknowledges the one before."""
    options = {name: value for name, value in plan.setup.options.items() if name not in _NOTHING_AHEAD}
    options = with_option(options, "maxEntriesPerTrigger", chance.choice(["1", "2", "4"]))
    steps = [*plan.steps]
    for _ in range(chance.choice([1, 2, 3])):
        place = chance.randint(0, len(steps))
        steps[place:place] = [Step("add", 0, chance.random(), 0.99), Step("trigger"), random_step(chance, "lag", 0),
                              *[Step("trigger")] * chance.choice([2, 3, 4])]  # fmt: skip
    setup = replace(plan.setup, ahead=1, before=12, options=options)
    return replace(plan, setup=setup, steps=tuple(steps))


def _with_deadly_batches(chance: random.Random, plan: Plan) -> Plan:
    """Batches that kill their query again and again, until their entries are set aside. In some plans, entries of them
    do not fit."""
    has_letters = chance.random() < 0.6
    wanted = {"maxDeliveries": chance.choice(["1", "2"]), **({"mode": "DEADLETTER"} if has_letters else {})}

    def changed(options: Mapping[str, str]) -> dict[str, str]:
        for name, value in wanted.items():
            options = with_option(options, name, value)
        return {**options}

    steps = [replace(step, options=tuple(changed(dict(step.options)).items())) if step.options else step
             for step in plan.steps]  # fmt: skip
    for _ in range(chance.choice([1, 1, 2])):
        place = chance.randint(0, len(steps))
        block = [Step("add", 0, chance.random(), chance.random())]
        block += [random_step(chance, "misfit", 0)] * (chance.choice([0, 1, 2]) if has_letters else 0)
        for _ in range(chance.choice([1, 2, 3])):
            block += [random_step(chance, "crash", 0), Step("trigger")]
        steps[place:place] = [*block, *[Step("trigger")] * chance.choice([1, 3, 6])]
    setup = replace(plan.setup, options=changed(plan.setup.options), has_values=has_letters or plan.setup.has_values)
    return replace(plan, setup=setup, steps=tuple(steps))


def _with_a_part_put_back(chance: random.Random, plan: Plan) -> Plan:
    """While no query runs, one stream with the keys beside it and the dead letters, or all keys, become as an older
    copy has them. So it is after a failover of one of a cluster's masters."""
    steps = [*plan.steps]
    for _ in range(chance.choice([1, 1, 2])):
        place = chance.randint(0, len(steps))
        between: list[Step] = []
        for _ in range(chance.choice([1, 2, 3])):
            between += [random_step(chance, "add", 0), Step("trigger")]
        put_back = random_step(chance, "import_backup", 0)
        put_back = replace(put_back, how=round(0.25 + 0.75 * put_back.how, 3))  # never without the keys beside it
        steps[place:place] = [Step("backup"), *between, Step("kill"), put_back, Step("trigger"), Step("trigger")]
    return replace(plan, steps=tuple(steps))


def _with_handovers(chance: random.Random, plan: Plan) -> Plan:
    """Entries that another consumer has read are handed over one after the other, when the query is above them: those
    of one batch of the second backlog, and more of them before that is acknowledged."""

    def changed(options: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in options.items() if name != "noAck"}  # it refuses other consumers

    steps = [replace(step, options=tuple(changed(dict(step.options)).items())) for step in plan.steps]
    for _ in range(chance.choice([1, 1, 2])):
        place, choice = chance.randint(0, len(steps)), chance.random()  # of one stream
        read = Step("read", 0, choice, 0.9)
        block = [Step("trigger"), Step("add", 0, choice, 0.6), read, Step("add", 0, choice, 0.1), Step("trigger")]
        for _ in range(chance.choice([2, 3, 4])):
            give = random_step(chance, "give", chance.choice([0, chance.randint(1, 40)]))
            block += [replace(give, choice=choice, amount=0.3 * give.amount), Step("trigger")]
        steps[place:place] = [*block, Step("trigger")]
    return replace(plan, setup=replace(plan.setup, options=changed(plan.setup.options)), steps=tuple(steps))


def _with_a_strict_successor(chance: random.Random, plan: Plan) -> Plan:
    """Entries leave a batch that a lenient query reads. Then it is killed, and its successor is strict."""
    strict = {name: value for name, value in plan.setup.options.items() if name != "failOnDataLoss"}
    steps = [*plan.steps]
    for _ in range(chance.choice([1, 2])):
        place = chance.randint(0, len(steps))
        lenient = with_option(strict, "failOnDataLoss", "false")
        block = [Step("restart", options=tuple(lenient.items())), Step("trigger"), random_step(chance, "add", 0)]
        delete = replace(
            random_step(chance, "delete", chance.randint(1, 3)), at="XRANGE", amount=round(chance.random(), 3)
        )
        block += [delete, Step("trigger")]
        delay = chance.choice([0, chance.randint(1, 20)])
        steps[place:place] = [*block, Step("restart", delay, options=tuple(strict.items())), *[Step("trigger")] * 2]
    return replace(plan, steps=tuple(steps))


# Name → (how many of the plans have it, what puts it into a plan).
SELDOM: Mapping[str, tuple[float, Callable[[random.Random, Plan], Plan]]] = {
    "letters": (0.08, _with_letters),
    "releases": (0.06, _with_releases),
    "successors": (0.08, _with_successors),
    "other machines": (0.08, _with_other_machines),
    "a lag": (0.1, _with_a_lag),
    "handovers": (0.08, _with_handovers),
    "a strict successor": (0.06, _with_a_strict_successor),
    "deadly batches": (0.08, _with_deadly_batches),
    "a part put back": (0.06, _with_a_part_put_back),
    "late streams": (0.05, with_late_streams),
    "old entries and a kill": (0.05, with_old_entries),
    "archive": (0.06, _with_archive),  # the last one: it replaces all steps
}
