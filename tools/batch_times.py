"""Measure how long batches take with targetBatchTime: `python -m tools.batch_times [engine|redis] [--draw FILE]`.

A query reads 1,000,000 entries with a target of 10 s and a sink that takes 1 ms for each row. It is killed twice within
a batch. After the second kill the sink becomes ten times slower, first when the run begins, later within the run. The
measurement takes about five minutes. FILE: a chart of the batches (.svg or .png).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt

from tools.chaos.process import Job
from tools.driving import add
from tools.servers.server import Server, running_engine, running_redis

ENTRIES = 1_000_000
TARGET = 10.0
# Seconds of a row, by the first batch. Batch 11 is the first one that the third run plans, 14 is within that run.
COSTS = {0: 0.001, 11: 0.01, 14: 0.1}
LAST = (5, 9, 15)  # last complete batch of each run
_SUDDEN = 14  # planned before its sink became slower
_WITHIN = 1.5  # times the target: the longest batch
_CHUNK = 10_000
_INTO_A_BATCH = 3.0  # seconds after which a run is killed


@dataclass(frozen=True)
class Batch:
    """One complete batch. limit: None for a batch that Spark ran again after a kill."""

    run: int
    number: int
    rows: int
    seconds: float
    limit: int | None

    @property
    def cost(self) -> float:
        """Seconds of a row in the sink."""
        return COSTS[max(first for first in COSTS if first <= self.number)]


def measure(server: Server, folder: Path) -> list[Batch]:
    """Run the query, kill it, and return its batches."""
    with server.client() as client:
        for first in range(0, ENTRIES, _CHUNK):
            add(client, _CHUNK, first=first)
    batches: list[Batch] = []
    for run, last in enumerate(LAST):
        log = folder / f"batches-{run}.jsonl"
        plan = {"url": server.url, "target": f"{TARGET:g}s", "checkpoint": str(folder / "checkpoint"), "log": str(log)}
        with Job(folder, [], program="tools.batch_times_query", more={**plan, "costs": COSTS}) as job:
            job.wait_for(lambda log=log, last=last, run=run: _has(log, run, last), f"batch {last}")  # type: ignore[misc]
            time.sleep(_INTO_A_BATCH)
        batches += _batches(log, run)
    return batches


def _has(log: Path, run: int, last: int) -> bool:
    return any(batch.number >= last for batch in _batches(log, run))


def _batches(log: Path, run: int) -> list[Batch]:
    lines = log.read_text().splitlines() if log.exists() else []
    events = [json.loads(line) for line in lines if line.endswith("}")]
    return [
        Batch(
            run,
            event["batch"],
            event["rows"],
            event["batch_ms"] / 1000,
            group.get("limit"),
        )
        for event in events
        if event["event"] == "progress"
        for group in event["groups"]
    ]


def failures(batches: Sequence[Batch]) -> list[str]:
    """Return what is not as promised. Not promised: a batch that was planned before the sink became slower, and the
    first batch of a process, in which Spark starts its own ones."""
    cold = {run: min(batch.number for batch in batches if batch.run == run) for run in range(len(LAST))}
    found = [
        f"batch {batch.number} took {batch.seconds:.1f} s"
        for batch in batches
        if batch.seconds > _WITHIN * TARGET and batch.number not in (cold[batch.run], _SUDDEN)
    ]
    fifth = batches[4].seconds
    if abs(fifth - TARGET) > 0.2 * TARGET:
        found.append(f"the fifth batch took {fifth:.1f} s")
    return found


def print_table(batches: Sequence[Batch]) -> None:
    """Print a line for each batch."""
    print(f"{'run':>3} {'batch':>5} {'ms a row':>8} {'rows':>7} {'limit':>7} {'seconds':>8}")
    for batch in batches:
        limit = "replay" if batch.limit is None else f"{batch.limit:,}"
        print(
            f"{batch.run + 1:>3} {batch.number:>5} {batch.cost * 1000:>8g} {batch.rows:>7,} {limit:>7} "
            f"{batch.seconds:>8.1f}"
        )


def draw(batches: Sequence[Batch], server: str, file: Path) -> None:
    """Draw the seconds of each batch as a bar, with its rows above it."""
    figure, axes = plt.subplots(figsize=(10, 4.5))
    colours = {0.001: "#2a9d8f", 0.01: "#e9a23b", 0.1: "#c8553d"}
    for place, batch in enumerate(batches):
        bar = axes.bar(
            place, batch.seconds, color=colours[batch.cost], hatch="" if batch.limit else "//", edgecolor="white"
        )
        axes.bar_label(bar, [f"{batch.rows:,}"], fontsize=8)
        if place and batch.run != batches[place - 1].run:
            axes.axvline(place - 0.5, color="black", linewidth=1)
            axes.text(place - 0.45, 60, "killed", rotation=90, fontsize=9)
    axes.axhline(TARGET, color="black", linestyle="--", linewidth=1)
    axes.set_yscale("log")
    axes.set_yticks([1, 2, 5, 10, 15, 50, 100], ["1", "2", "5", "10", "15", "50", "100"])
    axes.set_xticks(range(len(batches)), [str(batch.number) for batch in batches])
    axes.set_xlabel("micro-batch (bars: seconds; above: rows; hatched: run again after a kill)")
    axes.set_ylabel("seconds, logarithmic")
    axes.set_title(f"targetBatchTime=10s on {server}: a sink of 1 ms (green), 10 ms (orange), 100 ms (red) a row")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, bbox_inches="tight")


def main() -> int:
    """Measure, print and draw. Return 1 if a batch is not as promised."""
    parser = argparse.ArgumentParser(prog="python -m tools.batch_times", description=__doc__)
    parser.add_argument("server", choices=["engine", "redis"], nargs="?", default="engine")
    parser.add_argument("--draw", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    running = running_engine if arguments.server == "engine" else running_redis
    with tempfile.TemporaryDirectory(prefix="rstream-batch-times-") as folder, running() as server:
        batches = measure(server, Path(folder))
    print_table(batches)
    if arguments.draw is not None:
        draw(batches, arguments.server, arguments.draw)
    found = failures(batches)
    promised = (
        f"The fifth batch took {batches[4].seconds:.1f} s. All took at most {_WITHIN * TARGET:g} s, except the first"
    )
    print(
        "\n".join(found) or f"{promised} batch of each process, and batch {_SUDDEN}, in which the sink became slower."
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
