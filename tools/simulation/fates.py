"""Mixes of what an operator changes between two runs, and of what few operators do. Pure (see mixes)."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace

from tools.simulation.options import STREAMS, VALUES, with_all, with_option, without
from tools.simulation.setup import Plan, Step, random_step, triggers, woven


def _between(chance: random.Random) -> list[Step]:
    """What happens to a query before its options change."""
    kind = chance.choice(["add", "add", "kill", "crash", "fail", "trim", "none"])
    delay = {"kill": chance.randint(1, 60), "fail": chance.randint(20, 120)}.get(kind, 0)
    return triggers(chance, 1, 2) if kind == "none" else [random_step(chance, kind, delay), *triggers(chance, 0, 1, 1)]


def _changing(*kinds: str) -> Callable[[random.Random], list[Step]]:
    """Return what makes a block of steps in which one of these changes happens: at once, or amid a trigger."""

    def block(chance: random.Random) -> list[Step]:
        change = random_step(chance, chance.choice(kinds), chance.choice([0, 0, chance.randint(1, 60)]))
        before = [step for _ in range(chance.choice([1, 2])) for step in _between(chance)]
        add = [random_step(chance, "add", 0) for _ in range(2)]
        return [add[0], *before, change, add[1], *triggers(chance, 1, 2, 3)]

    return block


def _with_patterns(chance: random.Random, plan: Plan) -> Plan:
    """The list of streams becomes a pattern, and back."""
    names = STREAMS[: chance.choice([2, 3, 4, 4])]
    listed = {"streams": ",".join(names)}
    plan = plan.with_options(lambda options: {**options, **(listed if "streams" in options else {})})
    block = _changing("repattern", "repattern", "repattern", "leave_out", "put_back")
    steps = woven(chance, plan.steps, [2, 2, 3, 5], lambda: block(chance))
    return replace(plan, setup=replace(plan.setup, streams=len(names)), steps=steps)


def _with_other_starts(chance: random.Random, plan: Plan) -> Plan:
    """startingOffsets, onCommit and the group change, while streams are new, missing or left out."""
    is_set_back = any(step.kind in ("rollback", "lose_commits") for step in plan.steps)
    plan = plan.with_options(lambda options: {**without(options, "startingTimestamp"), "startingOffsets": "earliest"})
    kinds = ["begin_otherwise", "regroup", "leave_out", "put_back", *([] if is_set_back else ["commit_otherwise"] * 2)]
    block = _changing(*kinds)

    def late() -> list[Step]:
        """A stream is deleted, or its group, and another start is for what follows it."""
        kinds = chance.choice([["vanish"], ["destroy"], ["leave_out", "destroy"]])
        end = [random_step(chance, kind, 0) for kind in kinds]
        again = [random_step(chance, "add", 0), random_step(chance, "put_back", 0)]
        return [*end, random_step(chance, "begin_otherwise", 0), *again, *triggers(chance, 1, 2)]

    steps = woven(chance, plan.steps, [2, 3, 4], lambda: block(chance))
    steps = woven(chance, steps, [0, 1], late)
    return replace(plan, setup=replace(plan.setup, streams=max(2, plan.setup.streams)), steps=steps)


_DELAYS = ("30s", "5m", "1m,10m", "1m,10m,1h", "2h", "6h,12h")


def _with_delays(chance: random.Random, plan: Plan) -> Plan:
    """Entries that do not fit are read again after minutes and hours. The query runs, is killed or stands still."""
    wanted = {"mode": "DEADLETTER", "retryDelay": chance.choice(_DELAYS)}

    def block() -> list[Step]:
        block = [random_step(chance, "misfit", 0), *triggers(chance, 2)]  # the second one lets it wait
        for _ in range(chance.choice([1, 2, 3])):
            block += [random_step(chance, "wait", 0), *chance.choice([[], [], [random_step(chance, "kill")]])]
            block += triggers(chance, 1, 2, 2)
        return block

    plan = plan.with_options(lambda options: with_all(options, wanted))
    steps = woven(chance, plan.steps, [1, 2, 3], block)
    return replace(plan, setup=replace(plan.setup, has_values=True), steps=steps)


_ACTIONS = ("give", "grab", "settle", "setid", "remake", "destroy", "expel", "release", "acknowledge", "leave", "die")


def _with_hands(chance: random.Random, plan: Plan) -> Plan:
    """Several operators do something to one batch: while it is planned, runs, or is not acknowledged yet."""
    plan = plan.with_options(lambda options: without(options, "noAck"))

    def block() -> list[Step]:
        choice = chance.random()  # of one stream
        block = [Step("add", 0, choice, 0.9), *triggers(chance, 0, 1)]
        block += [Step("read", 0, choice, chance.random(), chance.random()), Step("add", 0, choice, chance.random())]
        delays = [0, 0] if chance.random() < 0.4 else [chance.randint(1, 40), chance.randint(1, 80)]
        for kind in chance.sample(_ACTIONS, chance.choice([2, 2, 3, 4])):
            block.append(replace(random_step(chance, kind, chance.choice(delays)), choice=choice))
        if chance.random() < 0.3:  # `rstream groups seek`, which is refused while the query runs
            block += [Step("kill"), *(replace(random_step(chance, "seek", 0), choice=choice) for _ in range(2))]
        return [*block, *triggers(chance, 1, 2, 3)]

    return replace(plan, steps=woven(chance, plan.steps, [1, 1, 2, 3], block))


def _with_older_checkpoints(chance: random.Random, plan: Plan) -> Plan:
    """Older copies of the checkpoint, and of the commit log, of a query that removes what it has committed."""
    value = chance.choice(VALUES["onCommit"])
    plan = plan.with_options(lambda options: with_option(options, "onCommit", value))

    def block() -> list[Step]:
        block = [random_step(chance, "add", 0), Step("trigger"), *_between(chance), *triggers(chance, 0, 1)]
        back = random_step(chance, chance.choice(["rollback", "rollback", "lose_commits"]), 0)
        return [*block, back, *triggers(chance, 1, 2, 3)]

    return replace(plan, steps=woven(chance, plan.steps, [1, 1, 2, 3], block))


_A_RIGHT = 0.999  # choice of a code: the last one, a missing right, which may be met within a transaction. That which
# moves a page is about the thirtieth command.


def _with_refused_redrives(chance: random.Random, plan: Plan) -> Plan:
    """The server refuses commands of processes that send dead letters back."""
    plan = plan.with_options(lambda options: with_option(without(options, "retryDelay"), "mode", "DEADLETTER"))

    def block() -> list[Step]:
        block = [random_step(chance, "misfit", 0), *triggers(chance, 1, 2)]
        for _ in range(chance.choice([1, 2, 3])):
            refuse = random_step(chance, "refuse", 0)
            if chance.random() < 0.6:
                refuse = replace(refuse, choice=_A_RIGHT, amount=round(0.7 + 0.4 * refuse.amount, 3))
            block += [refuse]
            block += [random_step(chance, "redrive", 0), *triggers(chance, 0, 0, 1)]
        return [*block, random_step(chance, "redrive", 0), *triggers(chance, 1, 2)]

    steps = woven(chance, plan.steps, [1, 1, 2], block)
    return replace(plan, setup=replace(plan.setup, has_values=True), steps=steps)


_OUTPUTS: tuple[Mapping[str, str], ...] = (
    {"transaction": "rows"},
    {"streamColumn": "to"},
    {"idColumn": "id"},
    {"streamColumn": "to", "idColumn": "id"},
    {"waitReplicas": "1"},
    {"transaction": "rows", "waitReplicas": "1"},
    {"transaction": "rows", "streamColumn": "to", "idColumn": "id", "waitReplicas": "1"},
)


def _with_outputs(chance: random.Random, plan: Plan) -> Plan:
    """Options of the exactly-once sink that decide where, when and under which name it writes. The query is killed
    amid its batches; the server fails over, or has no replica."""
    options = chance.choice(_OUTPUTS)
    kinds = ["crash", "crash", "kill", "fail", "twin", "lose_commits", "none"]
    kinds += ["leave_alone", "leave_alone", "fail_over", "lag"] if "waitReplicas" in options else []
    delays = {"kill": (60, 200), "fail": (20, 120), "fail_over": (0, 100), "lag": (0, 100)}

    def block() -> list[Step]:
        block = [random_step(chance, "add", 0)]
        for kind in chance.choices(kinds, k=chance.choice([1, 1, 2])):
            block.append(random_step(chance, kind, chance.randint(*delays.get(kind, (0, 0)))))
        return [*(step for step in block if step.kind != "none"), *triggers(chance, 1, 2)]

    setup = replace(plan.setup, sink="once", sink_options=options)
    return replace(plan, setup=setup, steps=woven(chance, plan.steps, [1, 2, 3], block))


def _with_a_cluster(chance: random.Random, plan: Plan) -> Plan:
    """The server is a cluster of two nodes. Slots move from one to the other, and one node loses its last writes."""

    def block() -> list[Step]:
        block = [random_step(chance, "add", 0), random_step(chance, "backup", 0), *triggers(chance, 0, 1)]
        kind = chance.choice(["reshard", "reshard", "reshard", "restore_node", "crash"])
        delay = 0 if kind == "crash" else chance.choice([0, chance.randint(1, 100)])
        return [*block, random_step(chance, "add", 0), random_step(chance, kind, delay), *triggers(chance, 1, 2)]

    setup = replace(plan.setup, nodes=2, sink_elsewhere=False, streams=max(2, plan.setup.streams))
    return replace(plan, setup=setup, steps=woven(chance, plan.steps, [1, 2, 3], block))


_RESTORED = ("vanish", "vanish", "flush", "restore", "rollback", "rollback", "marks", "node")
_MARKS = (("key", "rstream:sink:*:r0*"),)


def _with_backups(chance: random.Random, plan: Plan) -> Plan:
    """Streams are missing, or the server or the checkpoint is an older one: the operator restores a backup, or uses the
    newer checkpoint. Or a batch that was begun loses its marks, or a closed one what a node of the cluster has."""
    has_nodes = chance.random() < 0.3

    def block() -> list[Step]:
        block = [
            random_step(chance, "add", 0),
            *triggers(chance, 0, 1, 2),
            Step("backup"),
            random_step(chance, "add", 0),
        ]
        match kind := chance.choice(_RESTORED):
            case "marks":
                block += [Step("crash"), Step("trigger"), replace(random_step(chance, "evict", 0), options=_MARKS)]
            case "node":
                block += [Step("crash", how=0.9), Step("trigger"), random_step(chance, "restore_node", 0)]
            case _:
                block += [*triggers(chance, 0, 1, 2), random_step(chance, kind, 0)]
        return [*block, *triggers(chance, 1, 2, 3)]

    to = {"streamColumn": "to"} if has_nodes else {}
    setup = replace(plan.setup, sink="once", sink_elsewhere=False, restores=True, nodes=1 + has_nodes, sink_options=to)
    return replace(plan, setup=setup, steps=woven(chance, plan.steps, [1, 2, 3], block))


Mix = Callable[[random.Random, Plan], Plan]


def _without_archive(mix: Mix) -> Mix:
    """A plan that reads an archive stays as it is: what leaves its streams meanwhile is no concern of the archive."""
    return lambda chance, plan: plan if "archivePath" in plan.setup.options else mix(chance, plan)


_ALL: Mapping[str, Mix] = {
    "patterns": _with_patterns,
    "starts": _with_other_starts,
    "delays": _with_delays,
    "hands": _with_hands,
    "older": _with_older_checkpoints,
    "redriven": _with_refused_redrives,
    "outputs": _with_outputs,
    "cluster": _with_a_cluster,
    "restored": _with_backups,
}
FATES: Mapping[str, Mix] = {name: _without_archive(mix) for name, mix in _ALL.items()}
