"""Many runs on one server, one seed after the other; what fails is counted by kind."""

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
from tools.simulation import known
from tools.simulation.patched import product
from tools.simulation.plan import Plan, make
from tools.simulation.run import run
from tools.simulation.shrinking import shrink


@dataclass
class Tally:
    """What came of many runs. seeds: by kind of failure; told: of each kind the first one's words."""

    runs: int = 0
    batches: int = 0
    ticks: int = 0
    seconds: float = 0.0
    seeds: dict[str, list[int]] = field(default_factory=dict)
    told: dict[str, str] = field(default_factory=dict)

    def add(self, other: Tally) -> None:
        """Together with another one."""
        self.runs += other.runs
        self.batches += other.batches
        self.ticks += other.ticks
        self.seconds = max(self.seconds, other.seconds)
        for kind, seeds in other.seeds.items():
            self.seeds.setdefault(kind, []).extend(seeds)
            self.told.setdefault(kind, other.told[kind])

    def unknown(self) -> dict[str, list[int]]:
        """The failures that nobody has told of yet."""
        return {kind: seeds for kind, seeds in self.seeds.items() if known.why(kind) is None}

    def __str__(self) -> str:
        rate = self.runs / self.seconds if self.seconds else 0.0
        lines = [f"{self.runs} runs, {self.batches} batches, {self.ticks} ticks, {rate:.1f} runs/s"]
        for kind, seeds in sorted(self.seeds.items(), key=lambda one: (known.why(one[0]) is not None, -len(one[1]))):
            why = known.why(kind)
            some = " ".join(str(seed) for seed in sorted(seeds)[:5])
            lines.append(f"{len(seeds):>6}  {kind}  [{some}]" + (f"  (known: {why})" if why else ""))
        return "\n".join(lines)


@contextlib.contextmanager
def serving(kind: str) -> Iterator[Server]:
    """A server of this kind for one process."""
    with running_redis() if kind == "redis" else running_engine() as server:
        yield server


def soak(server: Server, seeds: range, tally: Tally | None = None) -> Iterator[Tally]:
    """Run these seeds; the tally so far after each."""
    tally = Tally() if tally is None else tally
    with product(), server.client(decode_responses=True) as client:
        began = time.perf_counter()
        for seed in seeds:
            outcome = run(server, client, make(seed))
            tally.runs += 1
            tally.batches += outcome.batches
            tally.ticks += outcome.ticks
            tally.seconds = time.perf_counter() - began
            for failure in outcome.failures[:1]:
                tally.seeds.setdefault(failure.kind, []).append(seed)
                tally.told.setdefault(failure.kind, failure.told)
            yield tally


def shrunk(server: Server, client: redis.Redis, plan: Plan) -> Plan:
    """The shortest plan that fails in the same way."""

    def ways(one: Plan) -> set[tuple[str, ...]]:
        return {tuple(failure.kind.split(" | ")[:2]) for failure in run(server, client, one).failures[:1]}

    way = ways(plan)
    return shrink(plan, lambda one: ways(one) == way) if way else plan


def job(kind: str, seeds: range, seconds: float, results: Any) -> None:
    """One process of a soak: a server of its own; sends its tally now and then, and at the end."""
    with serving(kind) as server:
        tally, sent = Tally(), time.perf_counter()
        deadline = sent + seconds
        for _ in soak(server, seeds, tally):
            if time.perf_counter() > deadline:
                break
            if time.perf_counter() - sent > 10:
                results.put((seeds.start, False, tally))
                sent = time.perf_counter()
        results.put((seeds.start, True, tally))


def in_parallel(kind: str, runs: int, jobs: int, seed: int, seconds: float) -> Iterator[tuple[bool, Tally]]:
    """(whether it is done, the tally so far), now and then."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    share = -(-runs // jobs)
    parts = [range(seed + at, min(seed + at + share, seed + runs)) for at in range(0, runs, share)]
    processes = [context.Process(target=job, args=(kind, part, seconds, results), daemon=True) for part in parts]
    for process in processes:
        process.start()
    tallies: dict[int, Tally] = {}
    running = len(processes)
    while running:
        try:
            which, done, tally = results.get(timeout=5)
        except queue.Empty:
            dead = [process for process in processes if process.exitcode]
            if dead:
                raise RuntimeError(f"{len(dead)} of the soak's processes died: their errors stand above") from None
            continue
        tallies[which] = tally
        running -= done
        together = Tally()
        for one in tallies.values():
            together.add(one)
        yield not running, together
    for process in processes:
        process.join()
