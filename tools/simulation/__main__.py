"""python -m tools.simulation --runs 20000 --server redis --jobs 1 --seed 1

Progress on standard error; at the end the failures by kind, with seeds. `--shrink` prints the shortest plan of each
kind; `--story SEED` tells one run step by step.
"""

from __future__ import annotations

import argparse
import sys

from tools.simulation.patched import product
from tools.simulation.plan import make
from tools.simulation.run import run
from tools.simulation.soak import Tally, in_parallel, serving, shrunk


def story(kind: str, seed: int, whole: bool) -> int:
    """One run, told as it goes; the shortest one that fails alike unless it is to be the `whole` one."""
    with serving(kind) as server, product(), server.client(decode_responses=True) as client:
        plan = make(seed)
        if not whole:
            plan = shrunk(server, client, plan)
        outcome = run(server, client, plan, print)
        print(plan)
        for failure in outcome.failures:
            print(f"{failure.kind}\n    {failure.told}")
        return bool(outcome.failures)


def main() -> int:
    parser = argparse.ArgumentParser("python -m tools.simulation", description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--server", choices=["redis", "engine"], default="redis")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after so many")
    parser.add_argument(
        "--shrink", type=int, default=0, metavar="N", help="print the shortest plans of N unknown kinds"
    )
    parser.add_argument("--story", type=int, metavar="SEED", help="tell one run, made as short as it fails alike")
    parser.add_argument("--whole", action="store_true", help="with --story: as it is")
    given = parser.parse_args()
    if given.story is not None:
        return story(given.server, given.story, given.whole)
    tally = Tally()
    for done, tally in in_parallel(given.server, given.runs, given.jobs, given.seed, given.seconds):
        if not done:
            print(
                str(tally).partition("\n")[0] + f", {len(tally.unknown())} unknown kinds", file=sys.stderr, flush=True
            )
    print(tally)
    unknown = tally.unknown()
    if given.shrink and unknown:
        with serving(given.server) as server, product(), server.client(decode_responses=True) as client:
            for kind, seeds in sorted(unknown.items(), key=lambda one: -len(one[1]))[: given.shrink]:
                plan = shrunk(server, client, make(min(seeds)))
                print(f"\n{kind}\n    {tally.told[kind]}\n{plan}")
                for failure in run(server, client, plan).failures[:1]:
                    print(f"    {failure.kind}\n    {failure.told}")
    return bool(unknown)


if __name__ == "__main__":
    sys.exit(main())
