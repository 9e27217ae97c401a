"""scripts/simulate --runs 20000 --seed 1 --jobs 2

Prints the progress on standard error, and at the end the failures by kind, with seeds, and one line:

    20000 plans · 9.1 plans/s · digest 5f1c… · 0 undocumented

The digest is of all commands and replies in their order. With `--server process` (the default) these seeds have it
on each machine; redis and engine run in their own time, and have none. `--shrink` prints the shortest plan of each
undocumented kind; `--story SEED` prints one run step by step; `--pairs` prints which pairs of source options the plans
have, and runs none.

`--state FILE` holds how far the plans of each mix have come: after a stop, the same words go on, also with more --runs,
and print the tally of all.

`--mutants` plays plans and histories with each mutant of the product, or with the named ones, until one fails
(tools/simulation/mutants): with `--runs 0` no plans of seeds. `--story PLAY --mutants NAME` prints that run: PLAY is
what the line of the mutant names.
`--note` writes down what has found the mutants: each is tried with that first, and docs/internals/mutants.md prints it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tools.simulation.mixes import MIXES
from tools.simulation.mutants import plays
from tools.simulation.mutants.mutant import Note
from tools.simulation.mutants.table import MUTANTS, NAMED, write_down

_INTERVAL = 10  # seconds between two tallies


def mutants(names: Sequence[str], seeds: range, jobs: int, is_noted: bool) -> int:
    """Print for each mutant the first play that fails. seeds: of the plans that are tried last."""
    began = time.perf_counter()
    chosen = [NAMED[name] for name in names] or list(MUTANTS)
    missed, found = list[str](), dict[str, Note]()
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=1) as pool:
        running = [pool.apply_async(plays.finder_of, (mutant, seeds)) for mutant in chosen]
        for mutant, search in zip(chosen, running, strict=True):
            note = search.get()
            print(
                f"{mutant.name:<44} {'not found' if note is None else f'{note.play:<40} {note.kind[:90]}'}", flush=True
            )
            if note is None:
                missed.append(mutant.name)
            elif is_noted:
                found[mutant.name] = note
                write_down(found)
    print(
        f"{len(chosen)} mutants · {len(chosen) - len(missed)} found · not found: {', '.join(missed) or 'none'} · "
        f"{time.perf_counter() - began:.0f} s"
    )
    return bool(missed)


def tell(arguments: argparse.Namespace) -> int:
    """Print one run."""
    from tools.simulation.plan import make
    from tools.simulation.soak import story

    name: str = arguments.story
    if name.startswith("core/"):
        with plays.player() as failure_of:
            failure = failure_of(name)
        print(failure)
        return failure is not None
    plan = make(int(name), *arguments.add) if name.isdigit() else plays.plan_of(name)
    return story(arguments.server, plan, arguments.whole)


def soak(arguments: argparse.Namespace) -> int:
    """Run many plans, and count their failures."""
    from tools.simulation.met import report
    from tools.simulation.patched import product
    from tools.simulation.plan import make
    from tools.simulation.run import run
    from tools.simulation.soak import Tally, in_parallel, serving, shrunk
    from tools.simulation.state import State

    seeds, told = range(arguments.seed, arguments.seed + arguments.runs), time.perf_counter()
    state = None if arguments.state is None else State.read(arguments.state, arguments.add, seeds)
    seeds, tally = (seeds, Tally()) if state is None else (state.left, state.before)
    for next_seed, own in in_parallel(arguments.server, seeds, arguments.jobs, arguments.seconds, arguments.add):
        tally = own if state is None else state.after(next_seed, own)
        if time.perf_counter() - told > _INTERVAL:
            unknown = "".join(f"; {kind} {seeds[:3]}" for kind, seeds in tally.seeds.items())
            print(tally.summary() + unknown, file=sys.stderr, flush=True)
            told = time.perf_counter()
    print(report(tally.met))
    print(tally)
    if arguments.shrink and tally.seeds:
        with serving(arguments.server) as server, product(server), server.client(decode_responses=True) as client:
            for kind, seeds in sorted(tally.seeds.items(), key=lambda kind_and_seeds: -len(kind_and_seeds[1]))[
                : arguments.shrink
            ]:
                plan = shrunk(server, client, make(min(seeds), *arguments.add))
                print(f"\n{kind}\n    {tally.details[kind]}\n{plan}")
                for failure in run(server, client, plan).failures[:1]:
                    print(f"    {failure.kind}\n    {failure.details}")
    return bool(tally.seeds)


def main() -> int:
    parser = argparse.ArgumentParser("python -m tools.simulation", description=__doc__)
    parser.add_argument("--runs", type=int, help="number of plans (1000; with --mutants at most 2000 for each)")
    parser.add_argument("--server", choices=["redis", "engine", "process"], default="process")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="maximum of seconds")
    parser.add_argument(
        "--state", type=Path, metavar="FILE", help="go on where the plans of this mix have stopped, and write that down"
    )
    parser.add_argument(
        "--shrink", type=int, default=0, metavar="N", help="print the shortest plans of N undocumented kinds"
    )
    parser.add_argument(
        "--story", metavar="SEED", help="print one run, shrunk as far as it fails alike; also of a PLAY"
    )
    parser.add_argument(
        "--add",
        action="append",
        choices=[*MIXES],
        default=[],
        help="add to each plan: new checkpoints for the used group (renew), a parted network, slow replies and "
        "failovers (faults), questions where entries are (where), changing lists of streams (lists), sizes of requests "
        "and larger batches (limits), a sink on another server (elsewhere), failovers that lose writes (lost), "
        "commands that the server refuses (refused), a server's clock that goes back or ahead (clock), two drivers on "
        "one group, in place of each plan (driver), patterns in place of lists (patterns), other startingOffsets, "
        "onCommit and group (starts), retries after hours (delays), several operators (hands), older checkpoints with "
        "onCommit (older), redrives that are refused (redriven), options of the sink (outputs), a cluster (cluster), "
        "backups that are restored (restored), "
        "or each of these in its share of the plans (drawn); a server that takes few arguments (arguments), or has a "
        "newer rule of WATCH (watch); unmarked: do not judge commit marks; can be given several times",
    )
    parser.add_argument("--whole", action="store_true", help="with --story: do not shrink")
    parser.add_argument("--pairs", action="store_true", help="print the pairs of source options, and run no plan")
    parser.add_argument("--mutants", nargs="*", metavar="NAME", help="run plans with each mutant, or with these")
    parser.add_argument("--note", action="store_true", help="with --mutants: write down what has found them")
    arguments = parser.parse_args()
    if arguments.server != "process" and (only := sorted({"clock", "cluster", "driver"} & {*arguments.add})):
        parser.error(f"--add {only[0]} needs --server process, which has the plan's clock and nodes")
    if arguments.story is not None:
        for name in arguments.mutants or ():
            NAMED[name].install()
        return tell(arguments)
    if arguments.runs is None:
        arguments.runs = 1000 if arguments.mutants is None else 2000
    seeds = range(arguments.seed, arguments.seed + arguments.runs)
    if arguments.pairs:
        from tools.simulation.plan import report

        print(report(seeds, arguments.add))
        return 0
    if arguments.mutants is not None:
        return mutants(arguments.mutants, seeds, arguments.jobs, arguments.note)
    return soak(arguments)


if __name__ == "__main__":
    sys.exit(main())
