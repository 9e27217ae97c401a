"""`python -m tools.lives --runs N --seed S [--jobs 2] [--story SEED]`: random lives of commands."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter

from tools.lives.processes import product
from tools.lives.run import live, lives
from tools.simulation.in_process.server import ProcessServer


def _tell(text: str) -> None:
    print(text, file=sys.__stdout__)  # not into the output of a command


def main() -> int:
    """Run lives, and print what was found."""
    parser = argparse.ArgumentParser(prog="python -m tools.lives", description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--story", type=int, help="tell the life of this seed")
    given = parser.parse_args()
    if given.story is not None:
        server = ProcessServer()
        with product(server):
            return bool(live(server, given.story, _tell).faults)
    begun = time.monotonic()
    step = max(1, min(50, given.runs // given.jobs))
    parts = [
        (first, min(step, given.seed + given.runs - first))
        for first in range(given.seed, given.seed + given.runs, step)
    ]
    with multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
        counts, faults = Counter[str](), list[tuple[int, str]]()
        for some, found in pool.imap_unordered(lives, parts):
            counts.update(some)
            faults += found
            for seed, text in found:
                print(f"seed {seed}: {text[:600]}", flush=True)
    for name, count in sorted(counts.items()):
        print(f"{count:8,}  {name}")
    print(f"{given.runs} lives, {len({seed for seed, _ in faults})} with faults, {time.monotonic() - begun:.0f} s")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
