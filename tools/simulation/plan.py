"""Plans: the setup of a run and its steps, generated from one seed. Pure.

A run uses a few groups of powers, often one or those of a theme, sometimes all: so causes occur alone and together.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations

from spark_streams.connector.options.table import SOURCE
from tools.simulation.mixes import MIXES, SELDOM
from tools.simulation.options import LEFT_OUT, VALUES, first, later, may_stand_together, with_needed, with_option
from tools.simulation.setup import NEVER_AHEAD, Plan, Setup, Step

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
    "rivals": {"rival": 3, "stall": 2},
    "audience": {"audit": 6},
}
# Groups that affect each other. Half of the plans have one of these together.
THEMES: tuple[tuple[str, ...], ...] = (
    ("others", "claims", "group", "deletes"),
    ("others", "claims", "kills", "trims"),
    ("others", "group", "restarts"),
    ("kills", "tasks", "network"),
    ("kills", "tasks", "deletes", "trims"),
    ("kills", "tasks", "limits", "deletes"),
    ("kills", "limits", "restarts"),
    ("server", "kills", "tasks", "keys"),
    ("server", "vanish", "clock", "others"),
    ("checkpoint", "kills", "others", "streams"),
    ("checkpoint", "group", "restarts"),
)
AT_ONCE = ("trigger", "drain", "twin", "rollback", "lose_commits", "renew", "stall")


def make(seed: int, *additions: str) -> Plan:
    """Return the plan of this seed. additions: names of MIXES."""
    plan = _made(seed)
    for name, (often, put_into) in SELDOM.items():
        chance = random.Random(f"{seed} {name}")
        if chance.random() < often:
            plan = put_into(chance, plan)
    for name in additions:
        plan = MIXES[name](random.Random(f"{seed} {name}"), plan)
    return plan


def _made(seed: int) -> Plan:
    chance = random.Random(seed)
    powers = _powers(chance)
    count = chance.choice([1, 1, 1, 2, 2, 3, 4])
    setup = Setup(
        seed=seed,
        streams=count,
        sink="once" if chance.random() < (0.5 if "tasks" in powers else 0.25) else "recorder",
        ahead=chance.choice([1, 1, NEVER_AHEAD]),
        pace=chance.choice([-1, 0, 1, 1, 2]),
        options=first(chance, count, powers),
        before=chance.choice([0, 0, 3, 12]),
        retries=chance.choice([0, 1]),
        chunk=chance.choice([1, 2, 3, 7]),
    )
    return Plan(setup, tuple(_steps(chance, setup, powers)))


def _powers(chance: random.Random) -> dict[str, Mapping[str, int]]:
    names = list(POWERS)
    if chance.random() < 0.5:
        groups = {*chance.choice(THEMES), *chance.sample(names, chance.choice([0, 0, 1]))}
    else:
        groups = set(chance.sample(names, chance.choice([1, 1, 2, 2, 3, 4, len(names)])))
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
        settings = later(chance, setup.options, powers) if kind == "restart" else {}
        numbers = [round(0.999 * chance.random(), 3) for _ in range(3)]
        steps.append(Step(kind, delay, *numbers, options=tuple(settings.items())))
    return steps


# -- which pairs of options plans draw ---------------------------------------------------------------------------------


Pair = tuple[str, str]


def possible() -> set[Pair]:
    """Return the pairs that the product takes with some values that plans draw, and with what one of the two needs."""
    return {
        pair
        for name, other in combinations(sorted(VALUES), 2)
        for value in VALUES[name]
        for given in VALUES[other]
        if may_stand_together(name, value, other, given)
        for pair in combinations(sorted(with_option(with_needed(name, value), other, given)), 2)
    }


def of(plan: Plan) -> Iterator[Pair]:
    """Iterate over the pairs of options of each start in a plan."""
    for options in (plan.setup.options, *(dict(step.options) for step in plan.steps)):
        yield from combinations(sorted(options), 2)


def unknown() -> list[str]:
    """Return the source options that plans neither draw nor leave out for a reason."""
    return [option.name for option in SOURCE if option.name not in VALUES and option.name not in LEFT_OUT]


def report(seeds: Iterable[int], additions: Sequence[str] = ()) -> str:
    """Return lines on the pairs that the plans of these seeds have."""
    drawn = {pair for seed in seeds for pair in of(make(seed, *additions))}
    wanted = possible()
    missing = ", ".join(f"{name} and {other}" for name, other in sorted(wanted - drawn))
    left_out = "; ".join(f"{name}: {why}" for name, why in LEFT_OUT.items())
    return (
        f"pairs of source options: {len(wanted)} may stand together · {len(wanted & drawn)} drawn · "
        f"not drawn: {missing or 'none'}\noptions that no plan has: {left_out}"
    )
