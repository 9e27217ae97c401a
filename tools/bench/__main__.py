"""`scripts/bench [GROUP …] [--json] [--rounds N] [--only TEXT]`."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys

from rich.console import Console

from tools.bench.row import FILE, Row, record, run_in_turns, show
from tools.bench.servers import have_redis
from tools.waiting import exit_at_sigterm

# Of each group the title, and the module of this package that has a function `GROUP_rows(stack)`.
GROUPS = {
    "engine": ("Engine against redis-server and fakeredis", "engine"),
    "latency": ("Latency of blocked consumers", "engine"),
    "memory": ("Memory", "engine"),
    "source": ("Source on redis-server", "source"),
    "sink": ("Sink on redis-server", "sink"),
    "shards": ("Eight shards against one stream", "sink"),
    "values": ("Avro values against fastavro", "decode"),
    "hops": ("Latency from stream to stream", "hops"),
    "start": ("Waiting times of a user", "start"),
    "idle": ("A query without new entries", "hops"),
    "nexmark": ("Nexmark over streams, against Spark's file source", "nexmark"),
    "arrival": ("From XADD to a row in a table", "arrival"),
    "shapes": ("Entries of other shapes through the job etl", "shapes"),
    "processor": ("Processor time of an entry", "processor"),
    "growth": ("Growth of the source, against a tenth of the size", "growth"),
    "peers": ("Beside Kafka with Spark's connector, Flink, spark-redis", "peers.rows"),
}
# Measured only if the arguments name it: ten minutes and 9 GB of memory, or longer.
ON_REQUEST = {"growth", "nexmark", "arrival", "shapes", "peers"}


def main() -> int:
    """Measure the groups that the arguments name (default: all but ON_REQUEST)."""
    # Processes that compile their modules at each start would be measured instead of what a user starts.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    exit_at_sigterm()
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument(
        "groups",
        nargs="*",
        metavar="group",
        help=f"{', '.join(GROUPS)} (default: all but {', '.join(sorted(ON_REQUEST))})",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help=f"also write the medians into docs/internals/{FILE.name}; with --only, in place of these rows",
    )
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="measurements of each row (default 5)")
    parser.add_argument("--only", metavar="TEXT", help="measure only rows whose number or measure contains TEXT")
    parser.add_argument("--share", type=float, default=1.0, metavar="F", help="of the entries of peers: 0.01 tries it")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.groups if name not in GROUPS]
    if unknown:
        parser.error(f"there is no group {unknown[0]}; the groups are {', '.join(GROUPS)}")
    if arguments.json and arguments.share != 1:
        parser.error("--json writes whole measurements: leave out --share")
    if not have_redis():
        print(
            "bench: redis-server and redis-benchmark are not installed. Every comparison needs them: install Redis.",
            file=sys.stderr,
        )
        return 1
    console = Console(emoji=False, stderr=True)
    for name in arguments.groups or [name for name in GROUPS if name not in ON_REQUEST]:
        title, module = GROUPS[name]
        rows: list[Row] = []
        part = True  # an interrupted run has figures, too
        try:
            with contextlib.ExitStack() as stack, console.status(name) as status:
                share = {"share": arguments.share} if name == "peers" else {}
                rows = getattr(importlib.import_module(f"tools.bench.{module}"), f"{name}_rows")(stack, **share)
                if arguments.only:
                    rows = [row for row in rows if arguments.only in row.number or arguments.only in row.measure]
                run_in_turns(rows, arguments.rounds, status.update)
            part = bool(arguments.only)
        finally:
            measured = [row for row in rows if row.our_figures or row.skipped]
            rounds = max((len(row.our_figures) for row in measured), default=0)
            in_turns = "one measurement each" if rounds == 1 else f"{rounds} rounds in turns, median and range"
            show(measured, f"{title}: {in_turns}, {os.cpu_count()} cores", Console(emoji=False))
            if arguments.json:
                record(name, measured, part=part)
    return 0


if __name__ == "__main__":
    sys.exit(main())
