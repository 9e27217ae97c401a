"""`python -m tools.outputs --runs N --seed S [--format FORMAT] [--story SEED]`: random lives of outputs."""

from __future__ import annotations

import argparse
import atexit
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from tools.outputs.strikes import start_again


def main() -> int:
    """Run lives, and print what was found."""
    parser = argparse.ArgumentParser(prog="python -m tools.outputs", description=__doc__)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--format", choices=("parquet", "deltalake", "pyiceberg"), help="default: one after the other")
    parser.add_argument("--short", action="store_true", help="lives without Spark, of deltalake and pyiceberg")
    parser.add_argument("--story", type=int, help="tell the life of this seed")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no life after so many seconds")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="outputs-"))
    start_again(folder, ["-m", "tools.outputs", *sys.argv[1:], "--folder", str(folder)])
    if given.story is not None:
        given.seed, given.runs = given.story, 1
    bad = _lives(given)
    if not bad:
        atexit.register(shutil.rmtree, folder, ignore_errors=True)  # after Spark's end
    return bool(bad)


def _lives(given: argparse.Namespace) -> int:
    """Return how many lives have faults."""
    from tools.outputs.driver import settle  # Spark, in the process that is struck
    from tools.outputs.life import KINDS, Life
    from tools.outputs.short import ShortLife
    from tools.outputs.strikes import World

    world, counts, bad, begun = World(), Counter[str](), 0, time.monotonic()
    for seed in range(given.seed, given.seed + given.runs):
        if time.monotonic() - begun > given.seconds:
            break
        told: list[str] = []
        kinds, made = (KINDS[1:], ShortLife) if given.short else (KINDS, Life)
        kind = given.format or kinds[seed % len(kinds)]
        life = made(world, seed, kind, told.append if given.story is None else print)
        try:
            life.live()
            settle()
        except Exception:  # noqa: BLE001 - of a reader, too
            life.fault(traceback.format_exc())
        counts.update(life.counts + Counter({f"life {kind}": 1, "life": 1}))
        if life.faults:
            bad += 1
            print(f"seed {seed}, {kind}: {life.faults[0][-700:]}", *told, sep="\n    ", flush=True)
    for name, count in sorted(counts.items()):
        print(f"{count:8,}  {name}")
    lived, seconds = counts["life"], time.monotonic() - begun
    print(f"{lived} lives, {bad} with faults, {seconds:.0f} s, {60 * lived / seconds:.1f} a minute")
    return bad


if __name__ == "__main__":
    sys.exit(main())
