"""scripts/simulate --runs 20000 --seed 1 --jobs 2

Prints the progress on standard error, and at the end the failures by kind, with seeds, and one line:

    20000 plans · 9.1 plans/s · digest 5f1c… · 0 undocumented

The digest is of all commands and replies in their order. With `--server process` (the default) these seeds have it
on each machine; redis and engine run in their own time, and have none. `--shrink` prints the shortest plan of each
undocumented kind; `--story SEED` prints one run step by step.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tools.simulation.patched import product
from tools.simulation.plan import ADDITIONS, make
from tools.simulation.run import run
from tools.simulation.soak import Tally, in_parallel, serving, shrunk


def story(kind: str, seed: int, complete: bool, additions: Sequence[str]) -> int:
    """Print one run step by step. Unless `complete`, its plan is shrunk as far as it fails alike."""
    with serving(kind) as server, product(server), server.client(decode_responses=True) as client:
        plan = make(seed, *additions)
        if not complete:
            plan = shrunk(server, client, plan)
        outcome = run(server, client, plan, print)
        print(plan)
        for failure in outcome.failures:
            print(f"{failure.kind}\n    {failure.details}")
        return bool(outcome.failures)


def main() -> int:
    parser = argparse.ArgumentParser("python -m tools.simulation", description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
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
        choices=list(ADDITIONS),
        default=[],
        help="add to each plan: new checkpoints for the used group (renew), or a parted network, slow replies and "
        "failovers (faults); can be given several times",
    )
    parser.add_argument("--whole", action="store_true", help="with --story: do not shrink")
    arguments = parser.parse_args()
    if arguments.story is not None:
        return story(arguments.server, arguments.story, arguments.whole, arguments.add)
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


if __name__ == "__main__":
    sys.exit(main())
