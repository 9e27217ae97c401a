"""Run a query against a real server, and measure elapsed time and processor time of each process."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import DataFrame

from tools.bench.client import request
from tools.bench.servers import Running
from tools.bench.spark import entries, stream
from tools.bench.spark import running as running_query
from tools.bench.spark import started as batch_start

_TICK_US = 1e6 / os.sysconf("SC_CLK_TCK")
_PATIENCE = 120.0  # seconds that a trigger may take
_WARM_TRIGGERS = 3  # the first triggers of a query, which are not measured
_CHUNK = 10_000
VALUE_BYTES = 11  # mean of an entry's three values


@dataclass(frozen=True)
class Run:
    """Consecutive triggers of a query. Times in µs, of all these triggers together."""

    triggers: int
    entries: int
    elapsed: float
    server: float
    driver: float  # the Python process of the source
    tasks: float  # Python workers and the JVM

    @property
    def rate(self) -> float:
        """Entries per second."""
        return self.entries / self.elapsed * 1e6


@dataclass(frozen=True)
class Line:
    """A cost as a function of the entries of a trigger: fixed µs, and µs per entry."""

    fixed: float
    per_entry: float


def line(small: Run, large: Run, part: str) -> Line:
    """Return the cost through two runs with triggers of different sizes."""
    (a, x), (b, y) = (
        (run.entries / run.triggers, getattr(run, part) / run.triggers) for run in (small, large)
    )  # fmt: skip
    per_entry = (y - x) / (b - a)
    return Line(x - a * per_entry, per_entry)


def number_of(server: Running, section: str, name: str) -> float:
    """Return a number of INFO."""
    client = server.client()
    lines = client.call("INFO", section).decode().splitlines()
    client.close()
    return float(dict(text.split(":", 1) for text in lines if ":" in text)[name])


def server_time(server: Running) -> float:
    """Return µs of processor time that the server has used."""
    return 1e6 * (number_of(server, "cpu", "used_cpu_user") + number_of(server, "cpu", "used_cpu_sys"))


def new_group(server: Running, names: list[str]) -> None:
    """Create group `g` at the start of each stream, without pending entries."""
    client = server.client()
    for name in names:
        if client.call("EXISTS", name):
            client.call("XGROUP", "DESTROY", name, "g")
        client.call("XGROUP", "CREATE", name, "g", "0", "MKSTREAM")
    client.close()


def drain(server: Running, batch: int, triggers: int, sink: str | None = None, **options: str) -> Run:
    """Measure a query that reads a backlog of stream `s`. A first trigger is not measured.

    `sink`: delivery of a sink into stream `out` of the same server; without it the rows are dropped.
    """
    new_group(server, ["s"])
    client = server.client()
    client.call("DEL", "out")
    frame = stream(server, "s", maxEntriesPerTrigger=batch, **options)
    with _query(server, frame, sink) as query:
        _wait(query, 0)
        before = _times(server)
        _wait(query, triggers)
        after = _times(server)
        batches = [progress for progress in query.recentProgress if progress.batchId in range(1, triggers + 1)]
    client.call("DEL", "out")
    client.close()
    rows = sum(progress.numInputRows for progress in batches)
    if len(batches) != triggers or rows < 0.9 * batch * triggers:
        raise RuntimeError(
            f"{len(batches)} triggers with {rows:,} entries instead of {triggers} with {batch:,} each. "
            "Stream s has too few entries: add entries."
        )
    ended = batch_start(batches[-1]) + batches[-1].durationMs["triggerExecution"] / 1000
    used = [later - earlier for earlier, later in zip(before, after, strict=True)]
    return Run(triggers, rows, 1e6 * (ended - batch_start(batches[0])), *used)


def steady_trigger(server: Running, streams: int, count: int, triggers: int, **options: str) -> float:
    """Return the median ms of triggers that read `count` new entries, spread over the streams."""
    names = [f"t{number}" for number in range(streams)]
    new_group(server, names)
    data = request("MULTI") + b"".join(entries(name, count // streams) for name in names) + request("EXEC")
    times: list[float] = []
    with _query(server, stream(server, ",".join(names), **options), None, processingTime="500 milliseconds") as query:
        seen = -1
        while len(times) < triggers + _WARM_TRIGGERS:
            client = server.client()
            client.socket.sendall(data)
            client.take(count // streams * streams + 2)
            client.close()
            progress = _wait(query, seen + 1)
            seen = progress.batchId
            if progress.numInputRows == count:
                times.append(progress.durationMs["triggerExecution"])
    client = server.client()
    client.call("DEL", *names)
    client.close()
    return median(times[_WARM_TRIGGERS:])


def _query(server: Running, frame: DataFrame, sink: str | None, **trigger: Any) -> Any:
    trigger = trigger or {"processingTime": "0 seconds"}
    if sink is None:
        return running_query(frame, **trigger)
    options = {"url": f"redis://127.0.0.1:{server.port}/0", "stream": "out", "delivery": sink}
    return running_query(frame, "rstream", options, **trigger)


def _wait(query: Any, batch: int) -> Any:
    """Return the progress of this batch or a later one that has rows."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        progress = query.lastProgress
        if progress is not None and progress.numInputRows and progress.batchId >= batch:
            return progress
        error = query.exception()
        if error is not None:
            raise error
        if time.monotonic() > deadline:
            raise TimeoutError(f"the query did not complete batch {batch} within {_PATIENCE:g} s")
        time.sleep(0.01)


def _times(server: Running) -> tuple[float, float, float]:
    """Return µs of the server, of the source's process on the driver, and of workers and JVM."""
    used = {"driver": 0.0, "tasks": 0.0}
    for command, ticks in _descendants(os.getpid()):
        if b"streaming_source_runner" in command:
            used["driver"] += ticks * _TICK_US
        elif b"java" in command.split(b"\0")[0] or b"pyspark" in command:
            used["tasks"] += ticks * _TICK_US
    return server_time(server), used["driver"], used["tasks"]


def _descendants(pid: int) -> Iterator[tuple[bytes, int]]:
    """Yield command line and clock ticks of each process below this one, with those of its ended children."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            children = (task / "children").read_text().split()
        except OSError:  # the thread has ended
            continue
        for child in map(int, children):
            try:
                command = Path(f"/proc/{child}/cmdline").read_bytes()
                fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
                yield command, sum(map(int, fields[11:15]))
                yield from _descendants(child)
            except OSError:  # the process has ended
                continue
