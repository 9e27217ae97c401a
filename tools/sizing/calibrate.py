"""Measure the costs on this machine: about two minutes with a real redis-server and local[2] Spark."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, replace
from statistics import mean

import pyspark

from tools.bench.client import request
from tools.bench.servers import Running, running
from tools.bench.spark import load
from tools.sizing.costs import Costs
from tools.sizing.measure import VALUE_BYTES, Run, drain, line, number_of, server_time, steady_trigger
from tools.sizing.model import Machines, Workload, trigger

_BACKLOG = 3_600_000  # one trigger more than the runs read: the driver reserves it in advance
_MEMORY = 500_000
_SMALL, _LARGE = 300_000, 900_000  # entries of a trigger; `check` runs triggers of other sizes
_STREAMS = 500
_TASKS = 9
_CHUNK = 10_000
SPARK_CORES = 2  # local[2]


@dataclass(frozen=True)
class Measured:
    """What was measured. Each pair of runs has small triggers, then large ones. Times of triggers in ms."""

    add_us: float
    entry_bytes: float
    pending_bytes: float
    group: tuple[Run, Run]
    no_ack: tuple[Run, Run]
    at_least_once: tuple[Run, Run]
    exactly_once: tuple[Run, Run]
    few_entries: float  # one stream, one task
    nine_tasks: float
    one_task: float  # the same entries
    wide: float  # many streams
    narrow: float  # one stream, the same entries


def calibrate() -> Costs:
    """Return the costs of this machine."""
    with running("redis-server") as server:
        entry_bytes, pending_bytes = _memory(server)
        before = server_time(server)
        load(server, "s", _BACKLOG)
        add_us = (server_time(server) - before) / _BACKLOG
        drain(server, _LARGE, 2)  # the JVM compiles its code
        measured = Measured(
            add_us=add_us,
            entry_bytes=entry_bytes,
            pending_bytes=pending_bytes,
            group=_runs(server),
            no_ack=_runs(server, noAck="true"),
            at_least_once=_runs(server, "at-least-once"),
            exactly_once=_runs(server, "exactly-once"),
            few_entries=steady_trigger(server, 1, 100, 9),
            nine_tasks=steady_trigger(server, 1, 18_000, 9, entriesPerPartition=str(18_000 // _TASKS)),
            one_task=steady_trigger(server, 1, 18_000, 9),
            wide=steady_trigger(server, _STREAMS, 20_000, 9),
            narrow=steady_trigger(server, 1, 20_000, 9),
        )
        version = f"redis-server {server_version(server)}"
    print(measured, file=sys.stderr)
    cores = os.cpu_count() or 1
    return costs_of(measured, f"{cores} cores, {version}, Spark {pyspark.__version__}", cores)


def costs_of(measured: Measured, machine: str, cores: int) -> Costs:
    """Return the costs that explain the measurements."""
    group, no_ack = _mode(*measured.group), _mode(*measured.no_ack)
    plain, once = _mode(*measured.at_least_once), _mode(*measured.exactly_once)
    costs = Costs(
        machine=machine,
        cores=cores,
        server_add_us=measured.add_us,
        server_group_us=group.server,
        server_no_ack_us=no_ack.server,
        server_at_least_once_us=plain.server - group.server,
        server_exactly_once_us=once.server - group.server,
        driver_us=group.driver,
        read_us=group.tasks,
        at_least_once_us=plain.tasks - group.tasks,
        exactly_once_us=once.tasks - group.tasks,
        trigger_ms=measured.few_entries,
        sink_trigger_ms=max(0.0, once.fixed - group.fixed) / 1000,
        stream_ms=(measured.wide - measured.narrow) / (_STREAMS - 1),
        overlap=1.0,
        task_ms=(measured.nine_tasks - measured.one_task) * min(SPARK_CORES, cores) / (_TASKS - 1),
        entry_bytes=measured.entry_bytes,
        pending_bytes=measured.pending_bytes,
    )
    return replace(costs, overlap=_overlap(costs, measured.group))


def _overlap(costs: Costs, runs: tuple[Run, Run]) -> float:
    """Return by how much the work of these drains took longer than the busiest resource was busy."""
    machine, workload = Machines(servers=1, cores=SPARK_CORES, shared=True), Workload(rate=0, produced=False)
    expected = [trigger(costs, workload, machine, run.entries / run.triggers) for run in runs]
    elapsed = [run.elapsed / 1000 / run.triggers for run in runs]
    return mean((ms - step.fixed_ms) / step.work_ms for ms, step in zip(elapsed, expected, strict=True))


def server_version(server: Running) -> str:
    """Return the version that the server reports."""
    client = server.client()
    lines: list[str] = client.call("INFO", "server").decode().splitlines()
    client.close()
    return next(text.partition(":")[2] for text in lines if text.startswith("redis_version"))


def _runs(server: Running, sink: str | None = None, **options: str) -> tuple[Run, Run]:
    return drain(server, _SMALL, 7, sink, **options), drain(server, _LARGE, 2, sink, **options)


@dataclass(frozen=True)
class _Mode:
    """Costs of one way to read and write, in µs: of an entry, and `fixed` of a trigger (elapsed)."""

    server: float
    driver: float
    tasks: float
    fixed: float


def _mode(small: Run, large: Run) -> _Mode:
    """Divide the costs. The JVM has costs for each trigger; those of the server and of the source are negligible."""
    entries = small.entries + large.entries
    return _Mode(
        (small.server + large.server) / entries,
        (small.driver + large.driver) / entries,
        line(small, large, "tasks").per_entry,
        line(small, large, "elapsed").fixed,
    )


def _memory(server: Running) -> tuple[float, float]:
    """Return bytes of an entry without its values, and of a pending entry."""
    empty = number_of(server, "memory", "used_memory")
    load(server, "s", _MEMORY)
    stored = number_of(server, "memory", "used_memory")
    client = server.client()
    client.call("XGROUP", "CREATE", "s", "g", "0")
    for _ in range(_MEMORY // _CHUNK):
        client.socket.sendall(request("XREADGROUP", "GROUP", "g", "c", "COUNT", _CHUNK, "STREAMS", "s", ">"))
        client.take(1)
    time.sleep(0.2)  # the server frees the reply's buffers
    pending = number_of(server, "memory", "used_memory")
    client.call("DEL", "s")
    client.close()
    return (stored - empty) / _MEMORY - VALUE_BYTES, (pending - stored) / _MEMORY
