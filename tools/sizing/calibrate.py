"""Measure the costs on this machine: about two minutes with a real redis-server and local[2] Spark."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from statistics import mean

import pyspark

from tools.bench.client import request
from tools.bench.servers import Running, running
from tools.bench.spark import load
from tools.sizing.costs import Costs
from tools.sizing.measure import VALUE_BYTES, Line, Run, drain, line, number_of, server_time, steady_trigger
from tools.sizing.model import Machines, Workload, trigger

_BACKLOG = 3_000_000
_MEMORY = 500_000
_SMALL, _LARGE = 300_000, 900_000  # entries of a trigger; `check` runs triggers of other sizes
_STREAMS = 500
_TASKS = 9
_CHUNK = 10_000


def calibrate() -> Costs:
    """Return the costs of this machine."""
    with running("redis-server") as server:
        entry_bytes, pending_bytes = _memory(server)
        before = server_time(server)
        load(server, "s", _BACKLOG)
        add = (server_time(server) - before) / _BACKLOG
        drain(server, _LARGE, 2)  # the JVM compiles its code
        backlogs = _runs(server)
        group, no_ack = _lines(*backlogs), _lines(*_runs(server, noAck="true"))
        plain, once = _lines(*_runs(server, "at-least-once")), _lines(*_runs(server, "exactly-once"))
        trigger = steady_trigger(server, 1, 100, 9)
        tasks = steady_trigger(server, 1, 18_000, 9, entriesPerPartition=str(18_000 // _TASKS))
        one_task = steady_trigger(server, 1, 18_000, 9)
        streams = steady_trigger(server, _STREAMS, 20_000, 9)
        one_stream = steady_trigger(server, 1, 20_000, 9)
        _report("trigger", trigger, tasks, one_task, streams, one_stream)
        version = f"redis-server {server_version(server)}"
    cores = os.cpu_count() or 1
    costs = Costs(
        machine=f"{cores} cores, {version}, Spark {pyspark.__version__}",
        cores=cores,
        server_add_us=add,
        server_group_us=group["server"].per_entry,
        server_no_ack_us=no_ack["server"].per_entry,
        server_at_least_once_us=plain["server"].per_entry - group["server"].per_entry,
        server_exactly_once_us=once["server"].per_entry - group["server"].per_entry,
        driver_us=group["driver"].per_entry,
        read_us=group["tasks"].per_entry,
        at_least_once_us=plain["tasks"].per_entry - group["tasks"].per_entry,
        exactly_once_us=once["tasks"].per_entry - group["tasks"].per_entry,
        trigger_ms=trigger,
        sink_trigger_ms=max(0.0, once["elapsed"].fixed - group["elapsed"].fixed) / 1000,
        stream_ms=(streams - one_stream) / (_STREAMS - 1),
        overlap=1.0,
        task_ms=(tasks - one_task) * min(2, cores) / (_TASKS - 1),
        entry_bytes=entry_bytes,
        pending_bytes=pending_bytes,
    )
    return replace(costs, overlap=_overlap(costs, backlogs))


def _overlap(costs: Costs, runs: Iterable[Run]) -> float:
    """Return by how much the work of these drains took longer than the busiest resource was busy."""
    machine, workload = Machines(servers=1, cores=2, shared=True), Workload(rate=0, produced=False)
    expected = [trigger(costs, workload, machine, run.entries / run.triggers) for run in runs]
    measured = [run.elapsed / 1000 / run.triggers for run in runs]
    return mean((ms - model.fixed_ms) / model.work_ms for ms, model in zip(measured, expected, strict=True))


def server_version(server: Running) -> str:
    """Return the version that the server reports."""
    client = server.client()
    lines: list[str] = client.call("INFO", "server").decode().splitlines()
    client.close()
    return next(text.partition(":")[2] for text in lines if text.startswith("redis_version"))


def _runs(server: Running, sink: str | None = None, **options: str) -> tuple[Run, Run]:
    runs = drain(server, _SMALL, 7, sink, **options), drain(server, _LARGE, 2, sink, **options)
    _report(sink, options, *runs)
    return runs


def _lines(small: Run, large: Run) -> dict[str, Line]:
    return {part: line(small, large, part) for part in ("server", "driver", "tasks", "elapsed")}


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


def _report(*values: object) -> None:
    print(*values, file=sys.stderr, flush=True)
