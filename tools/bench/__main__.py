"""`scripts/bench [engine|latency|memory|source|sink|shards|start|hops|idle|scale] [--json] [--rounds N]`."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import signal
import sys
from pathlib import Path

from rich.console import Console

from tools.bench.row import Row, run_in_turns
from tools.bench.servers import have_redis
from tools.bench.table import show

# A group is a module here with `rows(stack)`.
GROUPS = {
    "engine": "Engine beside redis-server and fakeredis",
    "latency": "Latency of blocked consumers",
    "memory": "Memory",
    "source": "Source on redis-server",
    "sink": "Sink on redis-server",
    "shards": "Eight shards beside one stream",
    "start": "What a person waits for",
    "hops": "Latency from stream to stream",
    "idle": "A query without new entries",
    "scale": "Scale of the source",
}


def main() -> int:
    """Measure the groups asked for, or all."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the servers are stopped on the way out
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("groups", nargs="*", metavar="group", help=f"{', '.join(GROUPS)}; all if none is given")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="how often each row is measured (default 5)")
    parser.add_argument("--draw", metavar="FILE", help="measure curves of the source, and draw them (.svg or .png)")
    parser.add_argument("--only", metavar="ROW", help="only rows whose number or measure holds this")
    chosen = parser.parse_args()
    unknown = [name for name in chosen.groups if name not in GROUPS]
    if unknown:
        parser.error(f"no group {unknown[0]}: there are {', '.join(GROUPS)}")
    if chosen.draw and (chosen.groups or chosen.json or chosen.only):
        parser.error("--draw measures curves alone: leave out the groups, --json and --only")
    if not have_redis():
        print(
            "bench: redis-server and redis-benchmark are not installed: there is nothing to compare with",
            file=sys.stderr,
        )
        return 1
    printed: list[Row] = []
    told = Console(emoji=False, stderr=True)
    if chosen.draw:
        from tools.bench import curves

        with told.status("curves") as status:
            measured = curves.measure(status.update)
        curves.draw(measured, Path(chosen.draw))
        print(*[curve.told() for curve in measured], sep="\n")
        return 0
    for name in chosen.groups or GROUPS:
        with contextlib.ExitStack() as stack, told.status(name) as status:
            rows: list[Row] = importlib.import_module(f"tools.bench.{name}").rows(stack)
            if chosen.only:
                rows = [row for row in rows if chosen.only in row.number or chosen.only in row.measure]
            run_in_turns(rows, chosen.rounds, status.update)
        if not chosen.json:
            title = f"{GROUPS[name]}: {chosen.rounds} rounds in turns, median and range, {os.cpu_count()} cores"
            show(rows, title, Console(emoji=False))
        printed += rows
    if chosen.json:
        print(json.dumps([row.summary() for row in printed], indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
