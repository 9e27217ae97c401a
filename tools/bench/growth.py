"""P27: how the source scales. Each measure is compared with itself at a tenth of the size.

A rate (entries/s, MB/s) is linear if it stays at least 0.9 of the rate at the next smaller size. A cost (time, memory,
commands per second) is linear or better if it grows at most as much as the size.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.bench.hops import cost_now, source_processes
from tools.bench.row import Row
from tools.bench.servers import RawClient, Running, request, running
from tools.bench.source import add_to
from tools.bench.spark import append, load, next_batch, rate_of_batches, source, trigger_time_of
from tools.bench.spark import running as running_query
from tools.servers.server import resident

_NEW = 10_000  # entries of a trigger
_BUSY = 1_000  # streams that receive them
_TRIGGERS = 3
_BATCH = 100_000
_TASK_BATCH = 1_000_000  # divided into tasks
_BATCHES = 6  # that `rate` reads, with the one that it leaves out
_VALUE_BATCH = 200_000_000  # bytes
_ENTRY = 35  # bytes of the server per entry, at most
_PENDING_ENTRY = 85  # bytes more, if it is pending
_RATE_KEPT = 0.9


@dataclass(frozen=True)
class Measure:
    """One measure at several sizes."""

    title: str
    x: str  # what the sizes are
    unit: str
    sizes: Sequence[int]
    run: Callable[[Sequence[int]], Mapping[str, float]]  # measures these sizes: the figure `name` + size of each
    ran: str  # description of a run
    name: str = ""
    is_rate: bool = True
    memory: Callable[[int], int] = lambda _: 0  # bytes of the server by size
    rounds: int = 1

    def rows(self, available: int) -> list[Row]:
        """Return a row for each size but the first, compared with the next smaller one. Half as much memory again as
        the server needs must be available for growth."""
        run = functools.partial(self.run, [size for size in self.sizes if 1.5 * self.memory(size) <= available])
        return [
            Row("P27", f"{self.title}: {size:,} {self.x}", self.ran, self.unit,
                _RATE_KEPT if self.is_rate else size / smaller, run, run, f"{smaller:,}", at_least=self.is_rate,
                rounds=self.rounds, name=f"{self.name}{size}", peers_figure=f"{self.name}{smaller}",
                skipped="" if size in run.args[0] else f"needs {1.5 * self.memory(size) / 1e9:.1f} GB of memory, "
                                                       f"{available / 1e9:.1f} GB are available")
            for smaller, size in zip(self.sizes, self.sizes[1:], strict=False)
        ]  # fmt: skip


def growth_rows(stack: contextlib.ExitStack) -> list[Row]:
    """Return all rows of the group. Each measure starts its own servers."""
    return [row for measure in measures() for row in measure.rows(_available())]


def measures() -> list[Measure]:
    """Return all measures."""
    streams = functools.cache(measure_streams)
    of_streams = functools.partial(Measure, x="streams of a pattern", sizes=(1_000, 10_000, 100_000), is_rate=False,
                                   run=lambda counts: streams(tuple(counts)))  # fmt: skip
    batches = f"local[2], noop, {_BATCHES - 1} batches after a first batch"

    def pending_memory(count: int) -> int:
        return (count + _BATCHES * _BATCH) * _ENTRY + count * _PENDING_ENTRY

    return [
        of_streams("trigger", unit="ms", name="trigger ",
                   ran=f"{_NEW:,} new entries in {_BUSY:,} of the streams, triggerExecution, median"),
        of_streams("driver's memory", unit="MB", name="memory ",
                   ran="resident memory of the source's Python process, after the triggers"),
        of_streams("idle query", unit="/s", name="idle ",
                   ran="commands of the server, 10 s without an entry, a trigger every 0.5 s"),
        Measure("entries/s", "groups of a stream", "/s", (10, 100, 1_000), of_groups,
                f"{batches}; the other groups are idle", rounds=3),
        Measure("entries/s", "entries of backlog", "/s", (1_000_000, 10_000_000, 100_000_000), of_backlogs,
                f"{batches}, from the begin of the backlog", memory=lambda count: count * _ENTRY),
        Measure("entries/s", "entries pending for others", "/s", (100_000, 1_000_000, 10_000_000), of_foreign_pending,
                f"{batches}, after the pending entries", memory=pending_memory),
        Measure("MB/s", "bytes of a value", "MB/s", (10_000, 100_000, 1_000_000, 10_000_000), measure_values,
                f"{batches}, of {_VALUE_BATCH / 1e6:g} MB each", rounds=3),
        Measure("entries/s", "tasks", "/s", (4, 16, 64), of_tasks,
                f"{batches}, of {_TASK_BATCH:,} entries each", rounds=3),
    ]  # fmt: skip


@functools.cache
def _available() -> int:
    """Return bytes of memory that the machine had at the start, less 3 GB for Spark."""
    words = Path("/proc/meminfo").read_text().partition("MemAvailable:")[2].split()
    return int(words[0]) * 1024 - 3_000_000_000


def measure_streams(counts: Sequence[int]) -> dict[str, float]:
    """Return milliseconds of a trigger, megabytes of the source's process, and commands per second of an idle query."""
    figures = {}
    for count in counts:
        with running("redis-server") as server:
            _warm_up()
            names = [f"in:{number}" for number in range(count)]
            add_to(server, names, 1)()
            busy = names[:: max(1, count // _BUSY)]
            with running_query(source(server.url, streamsPattern="in:*"), "500 milliseconds") as query:
                next_batch(query, -1)
                add = add_to(server, busy, _NEW // len(busy))
                milliseconds = trigger_time_of(query, _NEW, _TRIGGERS, add)
                figures[f"trigger {count}"] = milliseconds
                figures[f"memory {count}"] = sum(map(resident, source_processes())) / 1e6
                time.sleep(3 + 3 * milliseconds / 1000)  # the query has acknowledged the last batch, and is idle
                figures[f"idle {count}"] = cost_now(server)["commands"]
    return figures


def of_groups(counts: Sequence[int]) -> dict[str, float]:
    """Return entries per second by the number of groups of the stream."""

    def create(server: Running, before: int, count: int) -> None:
        for number in range(max(1, before), count):  # one is the query's
            server.call("XGROUP", "CREATE", "long", f"other:{number}", "$")

    return _rates(_BATCHES * _BATCH, counts, prepare=create)


def of_backlogs(counts: Sequence[int]) -> dict[str, float]:
    """Return entries per second by the length of the stream, which is read from its begin."""
    return _rates(0, counts, prepare=lambda server, before, count: append(server, "long", count - before))


def of_foreign_pending(counts: Sequence[int]) -> dict[str, float]:
    """Return entries per second by the number of entries that are pending for another consumer."""
    return _rates(max(counts) + _BATCHES * _BATCH, counts, lambda count: {"foreign": count})


def of_tasks(counts: Sequence[int]) -> dict[str, float]:
    """Return entries per second by the number of tasks of a batch."""
    options = {"batch": _TASK_BATCH}
    return _rates(_BATCHES * _TASK_BATCH, counts, lambda count: options | {"entriesPerPartition": _TASK_BATCH // count})


def _rates(
    length: int,
    sizes: Sequence[int],
    options: Callable[[int], Mapping[str, int]] = lambda _: {},
    prepare: Callable[[Running, int, int], None] = lambda _server, _before, _size: None,
) -> dict[str, float]:
    """Return `rate` by size, of a stream that has this length at the begin. prepare: called with the size before."""
    figures = {}
    with running("redis-server") as server:
        _warm_up()
        load(server, "long", length)
        for before, size in itertools.pairwise((0, *sizes)):
            prepare(server, before, size)
            figures[f"{size}"] = rate(server, **options(size))
    return figures


def measure_values(sizes: Sequence[int]) -> dict[str, float]:
    """Return megabytes per second by the size of a value."""
    figures = {}
    for size in sizes:
        with running("redis-server") as server, server.client() as client:
            client.call("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
            command, batch = request("XADD", "s", "*", "value", b"v" * size), max(1, _VALUE_BATCH // size)
            for _ in range(_BATCHES * batch):
                client.send(command, 1)
            frame = source(server.url, "value STRING", streams="s", maxEntriesPerTrigger=batch)
            figures[f"{size}"] = rate_of_batches(frame, _BATCHES - 1) * size / 1e6
    return figures


@functools.cache
def _warm_up() -> None:
    """Read some batches, not measured: the JVM compiles its classes."""
    with running("redis-server") as server:
        load(server, "long", _BATCHES * _BATCH)
        for _ in range(2):
            rate(server)


def rate(server: Running, foreign: int = 0, batch: int = _BATCH, **options: Any) -> float:
    """Return entries per second of a few batches from the stream's start. foreign: entries pending for another."""
    with server.client() as client:
        client.call("XGROUP", "CREATE", "long", "g", "0")
        leave_pending(client, "long", "other", foreign)
        frame = source(server.url, streams="long", maxEntriesPerTrigger=batch, **options)
        try:
            return rate_of_batches(frame, _BATCHES - 1)
        finally:
            client.call("XGROUP", "DESTROY", "long", "g")


def leave_pending(client: RawClient, name: str, consumer: str, count: int) -> None:
    """Deliver the next `count` entries of group `g`, rounded down to 10,000, to a consumer, unacknowledged."""
    client.call("XGROUP", "CREATECONSUMER", name, "g", consumer)
    for _ in range(count // 10_000):
        read = request("XREADGROUP", "GROUP", "g", consumer, "COUNT", 10_000, "STREAMS", name, ">")
        client.socket.sendall(request("CLIENT", "REPLY", "SKIP") + read)
    client.call("PING")
