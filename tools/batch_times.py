"""Measure how long batches take with targetBatchTime: `python -m tools.batch_times [engine|redis] [--draw FILE]`.

A query reads 1,000,000 entries with a target of 10 s and a sink that takes 1 ms for each row. It is killed twice within
a batch. After the second kill the sink becomes ten times slower, first when the run begins, later within the run. The
measurement takes about five minutes. FILE: a chart of the batches (.svg).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.chaos.job import Job
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
_WIDTH = 1000  # of the drawing
_AXIS = (0.5, 1, 2, 5, 10, 15, 50, 100, 200)  # seconds
_COLOURS = dict(zip(COSTS.values(), ("#2a9d8f", "#e9a23b", "#c8553d"), strict=True))
_COLOURS_SAID = "a sink of 1 ms (green), 10 ms (orange), 100 ms (red) a row"
_BARS_SAID = "micro-batches (bars: seconds; above: rows; pale: run again after a kill; line between runs: killed)"


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


def drawing(batches: Sequence[Batch], server: str) -> str:
    """Return an SVG: the seconds of each batch as a bar, on a logarithmic scale, with its rows above it."""
    parts = [f'<text x="60" y="24" font-size="15">targetBatchTime={TARGET:g}s on {server}: {_COLOURS_SAID}</text>']
    for seconds in _AXIS:
        parts.append(f'<line x1="60" x2="{_WIDTH}" y1="{_y(seconds)}" y2="{_y(seconds)}" stroke="#ddd"/>')
        parts.append(f'<text x="52" y="{_y(seconds) + 4}" text-anchor="end">{seconds:g} s</text>')
    parts.append(f'<path d="M60 {_y(TARGET)} H{_WIDTH}" stroke="black" stroke-dasharray="6 4"/>')
    step = (_WIDTH - 60) / len(batches)
    for place, batch in enumerate(batches):
        left, top = round(60 + place * step, 1), _y(batch.seconds)
        middle = round(left + 0.4 * step, 1)
        opacity = 0.4 if batch.limit is None else 1  # pale: run again after a kill
        size = f'width="{0.8 * step:.1f}" height="{_y(_AXIS[0]) - top:.1f}"'
        parts.append(f'<rect x="{left}" y="{top}" {size} fill="{_COLOURS[batch.cost]}" fill-opacity="{opacity}"/>')
        parts.append(f'<text x="{middle}" y="{top - 5}" text-anchor="middle">{batch.rows:,}</text>')
        parts.append(f'<text x="{middle}" y="{_y(_AXIS[0]) + 16}" text-anchor="middle">{batch.number}</text>')
        if place and batch.run != batches[place - 1].run:
            parts.append(f'<path d="M{left - 0.1 * step:.1f} 40 V{_y(_AXIS[0])}" stroke="black"/>')
    parts.append(f'<text x="60" y="{_y(_AXIS[0]) + 34}">{_BARS_SAID}</text>')
    size = f'viewBox="0 0 {_WIDTH + 10} 400" font-family="sans-serif" font-size="11"'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', *parts, "</svg>", ""])


def _y(seconds: float) -> float:
    """Return the height of a value in the drawing."""
    lowest, highest = math.log(_AXIS[0]), math.log(_AXIS[-1])
    return round(355 - 305 * (math.log(max(seconds, _AXIS[0])) - lowest) / (highest - lowest), 1)


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
        arguments.draw.parent.mkdir(parents=True, exist_ok=True)
        arguments.draw.write_text(drawing(batches, arguments.server), encoding="utf-8")
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
