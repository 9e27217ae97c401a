"""Many runs on one server, one seed after another. Failures are counted by kind."""

from __future__ import annotations

import contextlib
import multiprocessing
import queue
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import redis

from tools.servers.server import Server, running_engine, running_redis
from tools.simulation import documented
from tools.simulation.patched import product
from tools.simulation.plan import Plan, make
from tools.simulation.run import run
from tools.simulation.shrinking import shrink


@dataclass
class Tally:
    """Sum of many runs. seeds: by kind of failure; details: of the first failure of each kind."""

    runs: int = 0
    batches: int = 0
    ticks: int = 0
    seconds: float = 0.0
    seeds: dict[str, list[int]] = field(default_factory=dict)
    details: dict[str, str] = field(default_factory=dict)

    def add(self, other: Tally) -> None:
        """Add another tally."""
        self.runs += other.runs
        self.batches += other.batches
        self.ticks += other.ticks
        self.seconds = max(self.seconds, other.seconds)
        for kind, seeds in other.seeds.items():
            self.seeds.setdefault(kind, []).extend(seeds)
            self.details.setdefault(kind, other.details[kind])

    def unknown(self) -> dict[str, list[int]]:
        """Return the failures that are not documented."""
        return {kind: seeds for kind, seeds in self.seeds.items() if documented.reason_of(kind) is None}

    def __str__(self) -> str:
        rate = self.runs / self.seconds if self.seconds else 0.0
        lines = [f"{self.runs} runs, {self.batches} batches, {self.ticks} ticks, {rate:.1f} runs/s"]
        for kind, seeds in sorted(
            self.seeds.items(),
            key=lambda kind_and_seeds: (documented.reason_of(kind_and_seeds[0]) is not None, -len(kind_and_seeds[1])),
        ):
            why = documented.reason_of(kind)
            examples = " ".join(str(seed) for seed in sorted(seeds)[:5])
            lines.append(f"{len(seeds):>6}  {kind}  [{examples}]" + (f"  (known: {why})" if why else ""))
        return "\n".join(lines)


@contextlib.contextmanager
def serving(kind: str) -> Iterator[Server]:
    """Run a server of this kind for one process."""
    with running_redis() if kind == "redis" else running_engine() as server:
        yield server


def soak(server: Server, seeds: range, tally: Tally | None = None, renews: bool = False) -> Iterator[Tally]:
    """Run these seeds. Yield the tally so far after each. renews: see plan.make."""
    tally = Tally() if tally is None else tally
    with product(), server.client(decode_responses=True) as client:
        began = time.perf_counter()
        for seed in seeds:
            outcome = run(server, client, make(seed, renews))
            tally.runs += 1
            tally.batches += outcome.batches
            tally.ticks += outcome.ticks
            tally.seconds = time.perf_counter() - began
            for failure in outcome.failures[:1]:
                tally.seeds.setdefault(failure.kind, []).append(seed)
                tally.details.setdefault(failure.kind, failure.details)
            yield tally


def shrunk(server: Server, client: redis.Redis, plan: Plan) -> Plan:
    """Return the shortest plan that fails alike."""

    def failure_kinds(candidate: Plan) -> set[tuple[str, ...]]:
        return {tuple(failure.kind.split(" | ")[:2]) for failure in run(server, client, candidate).failures[:1]}

    kinds = failure_kinds(plan)
    return shrink(plan, lambda candidate: failure_kinds(candidate) == kinds) if kinds else plan


def job(kind: str, seeds: range, seconds: float, results: Any, renews: bool) -> None:
    """Run one process of a soak with its own server. It sends its tally at intervals, and at the end. It ends if the
    process that has started it is killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    with serving(kind) as server:
        tally, sent = Tally(), time.perf_counter()
        deadline = sent + seconds
        for _ in soak(server, seeds, tally, renews):
            if time.perf_counter() > deadline or not parent.is_alive():
                break
            if time.perf_counter() - sent > 10:
                results.put((seeds.start, False, tally))
                sent = time.perf_counter()
        results.put((seeds.start, True, tally))


def in_parallel(
    kind: str, runs: int, jobs: int, seed: int, seconds: float, renews: bool = False
) -> Iterator[tuple[bool, Tally]]:
    """Run in several processes. Yield (whether all are done, the tally so far) at intervals."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    share = -(-runs // jobs)
    parts = [range(seed + start, min(seed + start + share, seed + runs)) for start in range(0, runs, share)]
    processes = [
        context.Process(target=job, args=(kind, part, seconds, results, renews), daemon=True) for part in parts
    ]
    for process in processes:
        process.start()
    tallies: dict[int, Tally] = {}
    running = len(processes)
    while running:
        try:
            first_seed, done, tally = results.get(timeout=5)
        except queue.Empty:
            dead = [process for process in processes if process.exitcode]
            if dead:
                raise RuntimeError(f"{len(dead)} of the soak's processes died: see their errors above") from None
            continue
        tallies[first_seed] = tally
        running -= done
        total = Tally()
        for tally_of_process in tallies.values():
            total.add(tally_of_process)
        yield not running, total
    for process in processes:
        process.join()
