"""scripts/simulate --runs 20000 --seed 1 --jobs 2

Prints the progress on standard error, and at the end the failures by kind, with seeds, and one line:

    20000 plans · 9.1 plans/s · digest 5f1c… · 0 undocumented

The digest is of all commands and replies in their order. With `--server process` (the default) these seeds have it
on each machine; redis and engine run in their own time, and have none. `--shrink` prints the shortest plan of each
undocumented kind; `--story SEED` prints one run step by step; `--pairs` prints which pairs of source options the plans
have, and runs none.

`--mutants` runs the plans with each mutant of the product, or with the named ones (tools/simulation/mutants), until one
fails. `--story SEED --mutants NAME` prints that run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tools.simulation.mutants.hunt import Hunt
from tools.simulation.mutants.table import MUTANTS, NAMED

# A mutant is installed before the product is imported: so what needs the product is imported later.


def mutants(names: Sequence[str], seeds: range, jobs: int, sample: int) -> int:
    """Print for each mutant the first plan that fails."""
    chosen = [NAMED[name] for name in names] or list(MUTANTS)
    ended = []
    for search in Hunt(chosen, seeds, jobs, sample).run():
        print(search, flush=True)
        ended.append(search)
    missed = [search.mutant.name for search in ended if search.first is None]
    found = len(ended) - len(missed)
    print(f"{len(ended)} mutants · {found} found within {len(seeds)} plans · not found: {', '.join(missed) or 'none'}")
    return bool(missed)


def soak(arguments: argparse.Namespace) -> int:
    """Run many plans, and count their failures."""
    from tools.simulation.patched import product
    from tools.simulation.plan import make
    from tools.simulation.run import run
    from tools.simulation.soak import Tally, in_parallel, serving, shrunk

    tally = Tally()
    for done, tally in in_parallel(
        arguments.server, arguments.runs, arguments.jobs, arguments.seed, arguments.seconds, arguments.add
    ):
        if not done:
            unknown = "".join(f"; {kind} {seeds[:3]}" for kind, seeds in tally.unknown().items())
            print(tally.summary() + unknown, file=sys.stderr, flush=True)
    print(tally)
    if arguments.shrink and tally.unknown():
        with serving(arguments.server) as server, product(server), server.client(decode_responses=True) as client:
            for kind, seeds in sorted(tally.unknown().items(), key=lambda kind_and_seeds: -len(kind_and_seeds[1]))[
                : arguments.shrink
            ]:
                plan = shrunk(server, client, make(min(seeds), *arguments.add))
                print(f"\n{kind}\n    {tally.details[kind]}\n{plan}")
                for failure in run(server, client, plan).failures[:1]:
                    print(f"    {failure.kind}\n    {failure.details}")
    return bool(tally.unknown())


def main() -> int:
    parser = argparse.ArgumentParser("python -m tools.simulation", description=__doc__)
    parser.add_argument("--runs", type=int, help="number of plans (1000; with --mutants at most 2000 for each)")
    parser.add_argument("--server", choices=["redis", "engine", "process"], default="process")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="maximum of seconds")
    parser.add_argument(
        "--shrink", type=int, default=0, metavar="N", help="print the shortest plans of N undocumented kinds"
    )
    parser.add_argument("--story", type=int, metavar="SEED", help="print one run, shrunk as far as it fails alike")
    parser.add_argument(
        "--add",
        action="append",
        choices=["renew", "faults"],
        default=[],
        help="add to each plan: new checkpoints for the used group (renew), or a parted network, slow replies and "
        "failovers (faults); can be given several times",
    )
    parser.add_argument("--whole", action="store_true", help="with --story: do not shrink")
    parser.add_argument("--pairs", action="store_true", help="print the pairs of source options, and run no plan")
    parser.add_argument("--mutants", nargs="*", metavar="NAME", help="run plans with each mutant, or with these")
    parser.add_argument(
        "--sample", type=int, default=0, metavar="N", help="with --mutants: count how many of N plans find it"
    )
    arguments = parser.parse_args()
    if arguments.story is not None:
        for name in arguments.mutants or ():
            NAMED[name].install()
        from tools.simulation.story import story

        return story(arguments.server, arguments.story, arguments.whole, arguments.add)
    arguments.runs = arguments.runs or (1000 if arguments.mutants is None else 2000)
    seeds = range(arguments.seed, arguments.seed + arguments.runs)
    if arguments.pairs:
        from tools.simulation.pairs import report

        print(report(seeds, arguments.add))
        return 0
    if arguments.mutants is not None:
        return mutants(arguments.mutants, seeds, arguments.jobs, arguments.sample)
    return soak(arguments)


if __name__ == "__main__":
    sys.exit(main())
