"""P27: how the source scales. Each measure is compared with itself at a tenth of the size.

A rate (entries/s, MB/s) is linear if it stays at least 0.9 of the rate at the next smaller size. A cost (time, memory,
commands per second) is linear or better if it grows at most as much as the size.
"""

from __future__ import annotations

import contextlib
import functools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.bench.client import RawClient, request
from tools.bench.idle import SOURCE_PROCESS, cost_now, processes
from tools.bench.row import Row
from tools.bench.servers import Running, running
from tools.bench.source import add_to
from tools.bench.spark import SCHEMA, append, load, next_batch, rate_of_batches, source, stream, trigger_time_of
from tools.bench.spark import running as running_query

_STREAMS = (1_000, 10_000, 100_000)
_GROUPS = (10, 100, 1_000)
_BACKLOGS = (1_000_000, 10_000_000, 100_000_000)
_PENDING = (100_000, 1_000_000, 10_000_000)
_VALUES = (10_000, 100_000, 1_000_000, 10_000_000)
_TASKS = (4, 16, 64)

_NEW = 10_000  # entries of a trigger
_BUSY = 1_000  # streams that receive them
_TRIGGERS = 3
_BATCH = 100_000
_TASK_BATCH = 1_000_000  # divided into tasks
_BATCHES = 6  # that `rate` reads, with the one that it leaves out
_VALUE_BATCH = 200_000_000  # bytes
_REPEATS = 3  # of measures that take less than a minute
_ENTRY = 35  # bytes of the server per entry, at most
_PENDING_ENTRY = 85  # bytes more, if it is pending
_RATE_KEPT = 0.9

Figures = dict[int, float]


@dataclass(frozen=True)
class Measure:
    """One measure at several sizes. figures: measures all sizes, at most once; ran: description of a run; memory: bytes
    of the server by size."""

    title: str
    x: str  # what the sizes are
    unit: str
    sizes: Sequence[int]
    figures: Callable[[], Figures]
    ran: str
    is_rate: bool = True
    memory: Callable[[int], int] = lambda _: 0

    def fitting(self, available: int) -> list[int]:
        """Return the sizes that fit into this number of bytes, with half as much again for growth."""
        return [size for size in self.sizes if 1.5 * self.memory(size) <= available]

    def rows(self, available: int) -> list[Row]:
        """Return a row for each size but the first, compared with the next smaller one."""
        fitting = self.fitting(available)
        return [
            Row("P27", f"{self.title}: {size:,} {self.x}", self.ran, self.unit,
                _RATE_KEPT if self.is_rate else size / smaller,
                functools.partial(self._figure, size), functools.partial(self._figure, smaller), f"{smaller:,}",
                at_least=self.is_rate, rounds=1,
                skipped="" if size in fitting else f"needs {1.5 * self.memory(size) / 1e9:.1f} GB of memory, "
                                                   f"{available / 1e9:.1f} GB are available")
            for smaller, size in zip(self.sizes, self.sizes[1:], strict=False)
        ]  # fmt: skip

    def _figure(self, size: int) -> float:
        return self.figures()[size]


def rows(stack: contextlib.ExitStack) -> list[Row]:
    """Return all rows of the group. Each measure starts its own servers."""
    return [row for measure in measures() for row in measure.rows(_available())]


@functools.cache
def measures() -> list[Measure]:
    """Return all measures."""
    streams = functools.cache(lambda: measure_streams(_STREAMS))
    of_streams = [
        Measure(title, "streams of a pattern", unit, _STREAMS, functools.partial(_part, streams, part), ran, False)
        for part, (title, unit, ran) in enumerate((
            ("first trigger of a query", "ms", "an entry in each stream, triggerExecution"),
            ("trigger", "ms", f"{_NEW:,} new entries in {_BUSY:,} of the streams, triggerExecution, median"),
            ("driver's memory", "MB", "VmRSS of the source's Python process, after the triggers"),
            ("idle query", "/s", "commands of the server, 10 s without an entry, a trigger every 0.5 s"),
        ))
    ]  # fmt: skip
    batches = f"local[2], noop, {_BATCHES - 1} batches after a first batch"
    repeated = f"; all sizes in turn, {_REPEATS} times, median"

    def measure(title: str, x: str, unit: str, sizes: Sequence[int], figures: Callable[[Sequence[int]], Figures],
                ran: str, is_rate: bool = True, memory: Callable[[int], int] = lambda _: 0,
                repeats: int = 1) -> Measure:  # fmt: skip
        @functools.cache
        def all_figures() -> Figures:
            return medians([figures(created.fitting(_available())) for _ in range(repeats)])

        created = Measure(title, x, unit, sizes, all_figures, ran, is_rate, memory)
        return created

    def pending_memory(count: int) -> int:
        return (count + _BATCHES * _BATCH) * _ENTRY + count * _PENDING_ENTRY

    return [
        *of_streams,
        measure("entries/s", "groups of a stream", "/s", _GROUPS, measure_groups,
                f"{batches}; the other groups are idle{repeated}", repeats=_REPEATS),
        measure("entries/s", "entries of backlog", "/s", _BACKLOGS, measure_backlogs,
                f"{batches}, from the begin of the backlog", memory=lambda count: count * _ENTRY),
        measure("entries/s", "entries pending for others", "/s", _PENDING, measure_foreign_pending,
                f"{batches}, after the pending entries", memory=pending_memory),
        measure("first trigger", "entries pending for the query", "ms", _PENDING, measure_own_pending,
                f"triggerExecution of a new run that reads {_BATCH:,} of them", False, pending_memory),
        measure("MB/s", "bytes of a value", "MB/s", _VALUES, measure_values,
                f"{batches}, of {_VALUE_BATCH / 1e6:g} MB each{repeated}", repeats=_REPEATS),
        measure("entries/s", "tasks", "/s", _TASKS, measure_tasks,
                f"{batches}, of {_TASK_BATCH:,} entries each{repeated}", repeats=_REPEATS),
    ]  # fmt: skip


def medians(runs: Sequence[Figures]) -> Figures:
    """Return the median of each size's figures."""
    return {size: statistics.median(run[size] for run in runs) for size in runs[0]}


def _part(figures: Callable[[], dict[int, tuple[float, ...]]], part: int) -> Figures:
    return {size: parts[part] for size, parts in figures().items()}


@functools.cache
def _available() -> int:
    """Return bytes of memory that the machine had at the start, less 3 GB for Spark."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024 - 3_000_000_000
    raise RuntimeError("/proc/meminfo has no MemAvailable")


def measure_streams(counts: Sequence[int]) -> dict[int, tuple[float, ...]]:
    """Return milliseconds of the first trigger and of a later one, megabytes of the source's process, and commands per
    second of an idle query."""
    figures: dict[int, tuple[float, ...]] = {}
    for count in counts:
        with running("redis-server") as server:
            _warm_up()
            names = [f"in:{number}" for number in range(count)]
            add_to(server, names, 1)()
            busy = names[:: max(1, count // _BUSY)]
            frame = source(server, SCHEMA, streamsPattern="in:*")
            with running_query(frame, processingTime="500 milliseconds") as query:
                first = float(next_batch(query, -1).durationMs["triggerExecution"])
                add = add_to(server, busy, _NEW // len(busy))
                milliseconds = trigger_time_of(query, _NEW, _TRIGGERS, add)
                megabytes = sum(map(_resident, processes(SOURCE_PROCESS))) / 1e6
                time.sleep(3 + 3 * milliseconds / 1000)  # the query has acknowledged the last batch, and is idle
                figures[count] = first, milliseconds, megabytes, cost_now(server).commands
    return figures


def _resident(pid: int) -> int:
    """Return bytes of a process that are in memory; 0 if it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    return 0


def measure_groups(counts: Sequence[int]) -> Figures:
    """Return entries per second by the number of groups of the stream."""
    figures = {}
    with _loaded(_BATCHES * _BATCH) as server, contextlib.closing(server.client()) as client:
        created = 1  # the query's
        for count in counts:
            for number in range(created, count):
                client.call("XGROUP", "CREATE", "long", f"other:{number}", "$")
            created = count
            figures[count] = rate(server, "long")
    return figures


def measure_backlogs(counts: Sequence[int]) -> Figures:
    """Return entries per second by the length of the stream, which is read from its begin."""
    figures = {}
    length = 0
    with _loaded(0) as server:
        for count in counts:
            append(server, "long", count - length)
            length = count
            figures[count] = rate(server, "long")
    return figures


def measure_foreign_pending(counts: Sequence[int]) -> Figures:
    """Return entries per second by the number of entries that are pending for another consumer."""
    with _loaded(max(counts) + _BATCHES * _BATCH) as server:
        return {count: rate(server, "long", count) for count in counts}


def measure_own_pending(counts: Sequence[int]) -> Figures:
    """Return milliseconds of the first trigger by the number of entries that an earlier run has left pending."""
    figures = {}
    with _loaded(max(counts)) as server, contextlib.closing(server.client()) as client:
        for count in counts:
            client.call("XGROUP", "CREATE", "long", "g", "0")
            leave_pending(client, "long", "spark", count)
            frame = stream(server, "long", maxEntriesPerTrigger=_BATCH)
            with running_query(frame, processingTime="0 seconds") as query:
                first = next_batch(query, -1)
            assert first.numInputRows == min(count, _BATCH), "the first batch does not have the pending entries"
            figures[count] = float(first.durationMs["triggerExecution"])
            client.call("XGROUP", "DESTROY", "long", "g")
    return figures


def measure_values(sizes: Sequence[int]) -> Figures:
    """Return megabytes per second by the size of a value."""
    figures = {}
    for size in sizes:
        with running("redis-server") as server, contextlib.closing(server.client()) as client:
            client.call("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
            command, batch = request("XADD", "s", "*", "value", b"v" * size), max(1, _VALUE_BATCH // size)
            for _ in range(_BATCHES * batch):
                client.socket.sendall(command)
                client.take(1)
            frame = source(server, "value STRING", streams="s", maxEntriesPerTrigger=batch)
            figures[size] = rate_of_batches(frame, _BATCHES - 1) * size / 1e6
    return figures


def measure_tasks(counts: Sequence[int]) -> Figures:
    """Return entries per second by the number of tasks of a batch."""
    with _loaded(_BATCHES * _TASK_BATCH) as server:
        return {
            count: rate(server, "long", batch=_TASK_BATCH, entriesPerPartition=_TASK_BATCH // count) for count in counts
        }


@contextlib.contextmanager
def _loaded(count: int) -> Iterator[Running]:
    """Run a server with a stream of this length, after a warm-up of the JVM."""
    with running("redis-server") as server:
        _warm_up()
        load(server, "long", count)
        yield server


@functools.cache
def _warm_up() -> None:
    """Read some batches, not measured: the JVM compiles its classes."""
    with running("redis-server") as server:
        load(server, "long", _BATCHES * _BATCH)
        for _ in range(2):
            rate(server, "long")


def rate(server: Running, name: str, foreign: int = 0, batch: int = _BATCH, **options: int) -> float:
    """Return entries per second of a few batches from a stream's start, with `foreign` entries pending for another."""
    client = server.client()
    client.call("XGROUP", "CREATE", name, "g", "0")
    leave_pending(client, name, "other", foreign)
    try:
        return rate_of_batches(stream(server, name, maxEntriesPerTrigger=batch, **options), _BATCHES - 1)
    finally:
        client.call("XGROUP", "DESTROY", name, "g")
        client.close()


def leave_pending(client: RawClient, name: str, consumer: str, count: int) -> None:
    """Deliver the next `count` entries of group `g`, rounded down to 10,000, to a consumer, unacknowledged."""
    client.call("XGROUP", "CREATECONSUMER", name, "g", consumer)
    for _ in range(count // 10_000):
        read = request("XREADGROUP", "GROUP", "g", consumer, "COUNT", 10_000, "STREAMS", name, ">")
        client.socket.sendall(request("CLIENT", "REPLY", "SKIP") + read)
    client.call("PING")
