"""The model: from a workload and machines to utilisation, trigger duration, executors, memory, and what limits.

A trigger of n entries, read by t tasks:

    fixed = trigger_ms + sink_trigger_ms (exactly once) + stream_ms × streams + task_ms × t / cores
    work  = n × the largest of
            server     overlap × server µs of an entry / servers    (each server executes commands in one thread)
            tasks      (server µs + task µs) / min(t, cores)        (a task waits for the server while it reads)
            driver     driver µs                                    (one Python process)
            cores      overlap × (server + driver + task µs) / cores (if all share the cores of one machine)
            network    bytes of an entry, written and read / bytes per second of the servers
    duration = fixed + work

A trigger interval has rate × interval entries. Without an interval, a trigger has the entries that arrived during
the previous one: duration = fixed / (1 − rate × work of an entry).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from tools.sizing.costs import Costs

ENTRIES_PER_TASK = 100_000  # default of entriesPerPartition
_PROTOCOL_BYTES = 60  # of an entry in a command or a reply, in addition to its values
_GIGABIT = 1e9 / 8

Mode = Literal["group", "noAck"]
Delivery = Literal["at-least-once", "exactly-once"]


@dataclass(frozen=True)
class Workload:
    """What a query reads and writes. The streams of the sink are on the same servers."""

    rate: float  # entries per second
    value_bytes: float = 100.0
    streams: int = 1
    mode: Mode = "group"
    sink: Delivery | None = None  # of a sink into other streams; None: a table, or rows that are dropped
    produced: bool = True  # producers add entries at this rate; False: a backlog is read


@dataclass(frozen=True)
class Machines:
    """The servers and executors."""

    servers: int = 1
    cores: int = 2  # of all executors
    shared: bool = False  # servers, driver and executors share `cores` of one machine
    network: float = 10 * _GIGABIT  # bytes per second of each server


@dataclass(frozen=True)
class Trigger:
    """Duration of a trigger, and the resource that determines its work."""

    fixed_ms: float
    work_ms: float
    limit: str

    @property
    def duration_ms(self) -> float:
        return self.fixed_ms + self.work_ms


@dataclass(frozen=True)
class Plan:
    """Machines for a workload."""

    servers: int
    queries: int  # which divide the streams: each has a driver
    cores: int  # of all executors
    trigger_ms: float  # of a query, with the interval, or without one if it is 0
    server_utilisation: float
    driver_utilisation: float
    memory_bytes: float  # of each server
    limit: str  # the resource with the highest utilisation


def server_us(costs: Costs, workload: Workload) -> float:
    """Return µs of the server's thread for an entry, from XADD to acknowledgement, with the sink."""
    return (
        (costs.server_add_us if workload.produced else 0.0)
        + (costs.server_group_us if workload.mode == "group" else costs.server_no_ack_us)
        + {None: 0.0, "at-least-once": costs.server_at_least_once_us, "exactly-once": costs.server_exactly_once_us}[
            workload.sink
        ]
    )


def tasks_us(costs: Costs, workload: Workload) -> float:
    """Return µs of executors' cores for an entry, without the work of the query on its rows."""
    sink = {None: 0.0, "at-least-once": costs.at_least_once_us, "exactly-once": costs.exactly_once_us}
    return costs.read_us + sink[workload.sink]


def driver_us(costs: Costs, workload: Workload) -> float:
    """Return µs of the source's process on the driver for an entry."""
    return costs.driver_us if workload.mode == "group" else 0.0


def network_bytes(workload: Workload) -> float:
    """Return bytes that an entry's server receives and sends."""
    times = workload.produced + 1 + (workload.sink is not None)
    return times * (workload.value_bytes + _PROTOCOL_BYTES)


def work_us(costs: Costs, workload: Workload, machines: Machines, tasks: int) -> dict[str, float]:
    """Return elapsed µs for an entry by resource. The largest one determines the work of a trigger."""
    server, task, driver = server_us(costs, workload), tasks_us(costs, workload), driver_us(costs, workload)
    parts = {
        "server": costs.overlap * server / machines.servers,
        "tasks": (server + task) / min(tasks, machines.cores),
        "driver": driver,
        "network": 1e6 * network_bytes(workload) / (machines.network * machines.servers),
    }
    if machines.shared:
        parts["cores"] = costs.overlap * (server + task + driver) / machines.cores
    return parts


def tasks_of(entries: float) -> int:
    """Return the tasks of a trigger by the default of `entriesPerPartition`."""
    return max(1, math.ceil(entries / ENTRIES_PER_TASK))


def fixed_ms(costs: Costs, workload: Workload, cores: int, tasks: int) -> float:
    """Return ms of a trigger that do not depend on its entries."""
    sink = costs.sink_trigger_ms if workload.sink == "exactly-once" else 0.0
    return costs.trigger_ms + sink + costs.stream_ms * (workload.streams - 1) + costs.task_ms * (tasks - 1) / cores


def trigger(costs: Costs, workload: Workload, machines: Machines, entries: float, tasks: int | None = None) -> Trigger:
    """Return the duration of a trigger with this number of entries."""
    tasks = tasks or tasks_of(entries)
    parts = work_us(costs, workload, machines, tasks)
    limit = max(parts, key=parts.__getitem__)
    return Trigger(fixed_ms(costs, workload, machines.cores, tasks), entries * parts[limit] / 1000, limit)


def drain_rate(costs: Costs, workload: Workload, machines: Machines, batch: int) -> float:
    """Return entries per second of triggers that follow each other, with `batch` entries each."""
    return batch / trigger(costs, workload, machines, batch).duration_ms * 1000


def memory_bytes(costs: Costs, workload: Workload, stored: float, pending: float) -> float:
    """Return bytes of all servers for entries that are stored, some of them pending."""
    kept = costs.pending_bytes * pending if workload.mode == "group" else 0.0
    return stored * (workload.value_bytes + costs.entry_bytes) + kept


def catch_up_seconds(rate: float, capacity: float, away: float) -> float:
    """Return the seconds until the backlog of an outage is read: it shrinks by capacity less rate. inf: never."""
    return away * rate / (capacity - rate) if capacity > rate else math.inf


def plan(
    costs: Costs,
    workload: Workload,
    utilisation: float = 0.5,
    interval: float = 0.0,
    stored_seconds: float = 3600.0,
    network: float = 10 * _GIGABIT,
) -> Plan:
    """Return servers, queries and cores that the workload uses to this share at most, and the trigger duration on them.

    `interval`: trigger interval in seconds; 0: none. `stored_seconds`: the age at which entries are trimmed.
    """
    per_second = workload.rate / 1e6
    server, task = server_us(costs, workload), tasks_us(costs, workload)
    by_thread = per_second * server / utilisation
    by_network = workload.rate * network_bytes(workload) / network / utilisation
    servers = max(1, math.ceil(max(by_thread, by_network)))
    # A core is also occupied while its task waits for the server.
    cores = max(1, math.ceil(per_second * (server + task) / utilisation))
    queries = max(1, math.ceil(per_second * driver_us(costs, workload) / utilisation))
    part = replace(workload, rate=workload.rate / queries, streams=math.ceil(workload.streams / queries))
    machines = Machines(max(1, servers // queries), max(1, cores // queries), network=network)
    duration = interval
    for _ in range(100):  # entries of a trigger determine its duration, and the reverse
        step = trigger(costs, part, machines, part.rate * duration, machines.cores)
        if interval or abs(step.duration_ms / 1000 - duration) < 1e-4:
            break
        duration = step.duration_ms / 1000
    pending = workload.rate * (duration + step.duration_ms / 1000)
    shares = {
        "server": per_second * server / servers,
        "executors": per_second * (server + task) / cores,
        "network": workload.rate * network_bytes(workload) / network / servers,
        "driver": per_second * driver_us(costs, workload) / queries,
    }
    return Plan(
        servers,
        queries,
        cores,
        step.duration_ms,
        shares["server"],
        shares["driver"],
        memory_bytes(costs, workload, workload.rate * stored_seconds, pending) / servers,
        max(shares, key=shares.__getitem__),
    )
