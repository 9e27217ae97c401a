"""Which pairs of source options plans draw, and which of those that may stand together they do not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

from spark_streams.connector.options.table import SOURCE
from tools.simulation.options import LEFT_OUT, VALUES, may_stand_together, with_needed, with_option
from tools.simulation.plan import make
from tools.simulation.setup import Plan

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
