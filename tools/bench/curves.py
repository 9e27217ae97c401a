"""Curves of the source: `scripts/bench --draw curves.svg`.

They show entries per second by backlog, streams, queries of one group, entries pending for other consumers, and batch
size, and memory by batch size. Each point is one run over several batches of 100,000 entries; the first is left out.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from tools.bench import scale
from tools.bench.servers import running
from tools.bench.spark import entries, load, rate_of_batches, started, stream
from tools.bench.spark import running as running_query

_BATCH = 100_000
_BATCHES = 5
_SPREAD_ENTRIES = 700_000  # entries over several streams
_LONGEST_BACKLOG = 10_500_000
_MIB = 1 << 20
_COLOUR = "#1f6f8b"


@dataclass
class Curve:
    """One curve. `x` is the label of the horizontal axis, `unit` the unit of the points' second value."""

    title: str
    x: str
    unit: str
    points: list[tuple[float, float]] = field(default_factory=list)

    def summary(self) -> str:
        """Return the points as `backlog: 700k 412k/s · 10M 405k/s`."""
        return f"{self.title}: " + " · ".join(f"{_short(x)} {_short(y)}{self.unit}" for x, y in self.points)


def measure(tell: Callable[[str], None]) -> list[Curve]:
    """Measure all curves, which takes some minutes. Backlogs, streams and queries use a new redis-server each time."""
    backlog = Curve("entries/s by backlog", "entries in the stream", "/s")
    pending = Curve("entries/s by entries pending for others", "entries", "/s")
    size = Curve("entries/s by batch size", "entries of a batch", "/s")
    memory = Curve("MiB in Python's processes, by batch size", "entries of a batch", " MiB")
    with running("redis-server") as server:
        load(server, "long", _LONGEST_BACKLOG)
        scale.rate(server, "long")  # warm-up of the JVM, not measured
        for count in (0, 10_000, 100_000, 1_000_000):
            tell(f"{count:,} entries pending for other consumers")
            pending.points.append((count, scale.rate(server, "long", count)))
        for count in (1_000, 10_000, 30_000, 100_000, 300_000, 1_000_000):
            tell(f"batches of {count:,}")
            size.points.append((count, scale.rate(server, "long", batch=count)))
        for count in (10_000, 100_000, 1_000_000, 5_000_000):
            tell(f"memory with batches of {count:,}")
            peaks = scale.memory(server, count, max(2, min(20, 5_000_000 // count)))
            memory.points.append((count, peaks["python"] / _MIB))
    for count in (700_000, 2_000_000, 5_000_000, _LONGEST_BACKLOG):
        tell(f"backlog of {count:,}")
        with running("redis-server") as server:
            load(server, "long", count)
            backlog.points.append((count, scale.rate(server, "long")))
    streams, queries = _measure_streams(tell), _measure_queries(tell)
    return [backlog, streams, queries, pending, size, memory]


def _measure_streams(tell: Callable[[str], None]) -> Curve:
    curve = Curve("entries/s by streams", "streams that share the entries", "/s")
    for count in (1, 10, 100, 1_000):
        tell(f"{count:,} streams")
        with running("redis-server") as server:
            names = [f"m{number}" for number in range(count)]
            client = server.client()
            for name in names:
                client.socket.sendall(entries(name, _SPREAD_ENTRIES // count))
                client.take(_SPREAD_ENTRIES // count)
                client.call("XGROUP", "CREATE", name, "g", "0")
            client.close()
            frame = stream(server, ",".join(names), maxEntriesPerTrigger=_BATCH)
            curve.points.append((count, rate_of_batches(frame, _BATCHES)))
    return curve


def _measure_queries(tell: Callable[[str], None]) -> Curve:
    """Measure the sum of several queries in one Spark session that share a group. Each is another consumer."""
    curve = Curve("entries/s by queries that share a group", "queries, one Spark", "/s")
    for count in (1, 2, 4):
        tell(f"{count} queries of one group")
        with running("redis-server") as server, contextlib.ExitStack() as stack:
            load(server, "s", 3_000_000)
            client = server.client()
            client.call("XGROUP", "CREATE", "s", "g", "0")
            client.close()
            queries = []
            for number in range(count):
                frame = stream(server, "s", consumer=f"c{number}", maxEntriesPerTrigger=_BATCH)
                queries.append(stack.enter_context(running_query(frame, processingTime="0 seconds")))
            progresses = [progress for query in queries for progress in _batches_of(query, _BATCHES + 1)]
            measured = [progress for progress in progresses if progress.batchId > 0]
            began = min(map(started, measured))
            ended = max(started(progress) + progress.durationMs["triggerExecution"] / 1000 for progress in measured)
            curve.points.append((count, sum(progress.numInputRows for progress in measured) / (ended - began)))
    return curve


def _batches_of(query: StreamingQuery, count: int) -> Sequence[Any]:
    deadline = time.monotonic() + 120
    while True:
        error = query.exception()
        if error is not None:
            raise error
        progresses = [progress for progress in query.recentProgress if progress.numInputRows]
        if len(progresses) >= count:
            return progresses[:count]
        if time.monotonic() > deadline:
            raise TimeoutError("a query did not complete its next batch within 120 s")
        time.sleep(0.05)


def draw(curves: Sequence[Curve], to: Path, logarithmic: bool = False) -> None:
    """Draw all curves on one page, as SVG or PNG by the file's suffix. logarithmic: the vertical axes, too."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "curves"  # the same figures give the same file
    mpl.rcParams["svg.fonttype"] = "none"  # text stays text
    from matplotlib import pyplot

    lines = -(-len(curves) // 3)
    figure, axes = pyplot.subplots(lines, 3, figsize=(12, 3.2 * lines), layout="constrained")
    for axis, curve in zip(axes.flat, curves, strict=True):
        xs, ys = zip(*curve.points, strict=True)
        axis.plot(xs, ys, marker="o", color=_COLOUR)
        if min(xs) == 0:
            axis.set_xscale("symlog", linthresh=sorted(xs)[1])
        elif max(xs) > 10 * min(xs):
            axis.set_xscale("log")
        axis.set_xticks(xs)
        if logarithmic:
            axis.set_yscale("log")
            axis.set_ylim(10 ** math.floor(math.log10(min(ys))), 10 ** math.ceil(math.log10(1.15 * max(ys))))
        else:
            axis.set_ylim(0, 1.15 * max(ys))
        axis.minorticks_off()
        axis.set_title(curve.title, fontsize=10)
        axis.set_xlabel(curve.x, fontsize=9)
        axis.xaxis.set_major_formatter(lambda value, _: _short(value))
        axis.yaxis.set_major_formatter(lambda value, _: _short(value))
        axis.grid(visible=True, alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(to, metadata={"Date": None} if to.suffix == ".svg" else None)
    pyplot.close(figure)


def _short(value: float) -> str:
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"
