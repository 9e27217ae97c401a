"""P34: the processor time of an entry, for docs/guide/tuning.md: in the server, in the source's process on the driver,
and in what runs tasks: the JVM and its Python processes."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import NamedTuple

from tools.bench.hops import source_processes
from tools.bench.row import Row
from tools.bench.servers import Running, running
from tools.bench.source import empty_group
from tools.bench.spark import load, next_batch, source
from tools.bench.spark import running as running_query
from tools.processor_time import TICKS, processes_below
from tools.servers.server import processor_seconds

SMALL, LARGE = (300_000, 7), (900_000, 2)  # entries of a batch, and how many batches are measured
BACKLOG = 3_600_000  # two batches more than are measured: the first one, and the one that is reserved behind the last
RAN = f"local[2], 3 fields, batches of {SMALL[0]:,} and {LARGE[0]:,}; a sink: what it adds, into the same server"


class Used(NamedTuple):
    """Processor time, in µs."""

    server: float
    driver: float
    tasks: float


def used(server: Running) -> Used:
    """Return what has been used so far."""
    driver, tasks = 0.0, 0.0
    sources = set(source_processes())
    for pid, process in processes_below():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if pid in sources:
                driver += process.ticks
            elif b"java" in command.partition(b"\0")[0] or b"pyspark" in command:
                tasks += process.ticks
    return Used(1e6 * processor_seconds(server.pid), 1e6 * driver / TICKS, 1e6 * tasks / TICKS)


def read(server: Running, size: int, batches: int, delivery: str, **options: str) -> Used:
    """Return what these batches of stream `s` use, after a first one. delivery: of a sink into stream `out`."""
    empty_group(server, "s")
    server.call("DEL", "out")
    sink = {"url": server.url, "stream": "out", "delivery": delivery} if delivery else {}
    frame = source(server.url, streams="s", maxEntriesPerTrigger=size, **options)
    with running_query(frame, "0 seconds", **sink) as query:
        begun = next_batch(query, -1).batchId
        before = used(server)
        for number in range(begun, begun + batches):
            progress = next_batch(query, number)
            assert (progress.batchId, progress.numInputRows) == (number + 1, size), "not one batch after the other"
        after = used(server)
    return Used(*[end - start for start, end in zip(before, after, strict=True)])


def cost(server: Running, delivery: str = "", **options: str) -> Used:
    """Return what an entry uses. Tasks: by the difference of two sizes, without what each batch costs the JVM."""
    small, large = (read(server, *batches, delivery, **options) for batches in (SMALL, LARGE))
    entries = SMALL[0] * SMALL[1] + LARGE[0] * LARGE[1]
    tasks = (large.tasks / LARGE[1] - small.tasks / SMALL[1]) / (LARGE[0] - SMALL[0])
    return Used((small.server + large.server) / entries, (small.driver + large.driver) / entries, tasks)


MEASURES = (
    "server: XADD of a producer, pipelined",
    "server: read and acknowledge through a group",
    "server: read with noAck",
    "server: sink, at least once",
    "server: sink, exactly once",
    "driver: reserve, list and acknowledge",
    "executors: receive and decode",
    "executors: sink, at least once",
    "executors: sink, exactly once",
)


def costs(server: Running) -> dict[str, float]:
    """Return µs of an entry, by measure."""
    before = processor_seconds(server.pid)
    load(server, "s", BACKLOG)
    adding = 1e6 * (processor_seconds(server.pid) - before) / BACKLOG
    read(server, *LARGE, "")  # the JVM compiles its code
    group, no_ack = cost(server), cost(server, noAck="true")
    sinks = [cost(server, delivery) for delivery in ("at-least-once", "exactly-once")]
    of_server = [adding, group.server, no_ack.server, *(sink.server - group.server for sink in sinks)]
    figures = [*of_server, group.driver, group.tasks, *(sink.tasks - group.tasks for sink in sinks)]
    return dict(zip(MEASURES, figures, strict=True))


def processor_rows(stack: contextlib.ExitStack) -> list[Row]:
    """Return all rows of the group. A run gives all figures."""
    server = stack.enter_context(running("redis-server"))
    run = functools.partial(costs, server)
    return [Row("P34", name, RAN, "µs", None, run, at_least=False, rounds=3, name=name) for name in MEASURES]
