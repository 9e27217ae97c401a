"""Many runs on one server, one seed after another. Failures are counted by kind."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import queue
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import redis

from tools.servers.server import Server, running_engine, running_redis
from tools.simulation.in_process.server import ProcessServer
from tools.simulation.options import without
from tools.simulation.patched import product
from tools.simulation.plan import make
from tools.simulation.run import run
from tools.simulation.setup import NEVER_AHEAD, Plan

# -- a short plan that fails alike: leave out steps, simplify delays and options ---------------------------------------


_ALWAYS = ("streams", "streamsPattern", "startingOffsets", "startingTimestamp")  # options that a plan needs
_MAX_RUNS = 400
_MAX_SECONDS = 15.0


def shrink(plan: Plan, fails: Callable[[Plan], bool]) -> Plan:
    """Return the shortest plan that was found within a limit of runs and seconds. fails: whether a plan fails alike."""
    remaining_runs, deadline = _MAX_RUNS, time.monotonic() + _MAX_SECONDS
    smaller = True
    while smaller:
        smaller = False
        for candidate in _simpler(plan):
            remaining_runs -= 1
            if remaining_runs < 0 or time.monotonic() > deadline:
                return plan
            if fails(candidate):
                plan, smaller = candidate, True
                break
    return plan


def _simpler(plan: Plan) -> Iterator[Plan]:
    """Yield simpler plans, those with the largest difference first."""
    count = len(plan.steps)
    size = count // 2
    while size:
        for start in range(0, count, size):
            yield plan.without(range(start, min(start + size, count)))
        size //= 2
    setup = plan.setup
    for name in setup.options:
        if name not in _ALWAYS:
            yield replace(plan, setup=replace(setup, options=without(setup.options, name)))
    if setup.streams > 1 and "streams" in setup.options:
        fewer = ",".join(setup.options["streams"].split(",")[:-1])
        yield replace(
            plan, setup=replace(setup, streams=setup.streams - 1, options={**setup.options, "streams": fewer})
        )
    for name in setup.limits:
        kept_limits = {key: value for key, value in setup.limits.items() if key != name}
        yield replace(plan, setup=replace(setup, limits=kept_limits))
    for name, plain in {"sink_elsewhere": False, "before": 0, "pace": 0, "ahead": NEVER_AHEAD}.items():
        if getattr(setup, name) != plain:
            yield replace(plan, setup=replace(setup, **{name: plain}))  # type: ignore[arg-type]
    for index, step in enumerate(plan.steps):
        for delay in sorted({0, step.delay // 2, step.delay - 1} - {step.delay}):
            if 0 <= delay < step.delay:
                yield _with(plan, index, delay=delay)
        if step.amount > 0.2:
            yield _with(plan, index, amount=round(step.amount / 2, 3))
        if len(step.options) > 2:
            for removed in range(len(step.options)):
                if step.options[removed][0] not in _ALWAYS:
                    yield _with(plan, index, options=step.options[:removed] + step.options[removed + 1 :])


def _with(plan: Plan, index: int, **changes: object) -> Plan:
    steps = list(plan.steps)
    steps[index] = replace(steps[index], **changes)  # type: ignore[arg-type]
    return replace(plan, steps=tuple(steps))


# -- many plans --------------------------------------------------------------------------------------------------------


_OBJECTS_PER_COLLECTION = 50_000  # as in the process of a source (set_up_source_process): a plan has few cycles
_BLOCK = 10  # plans that a process runs before it tells
_AND = " & "  # between reasons


@dataclass
class Tally:
    """Sum of many runs. digest: of all their commands and replies, 0 if they cannot be repeated exactly; seeds: by kind
    of failure; details: of the first failure of each kind; used: reasons that have excused an entry, in
    so many plans."""

    runs: int = 0
    batches: int = 0
    ticks: int = 0
    seconds: float = 0.0
    digest: int = 0
    seeds: dict[str, list[int]] = field(default_factory=dict)
    details: dict[str, str] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)
    met: dict[str, int] = field(default_factory=dict)

    def add(self, other: Tally) -> None:
        """Add another tally."""
        self.runs += other.runs
        self.batches += other.batches
        self.ticks += other.ticks
        self.seconds += other.seconds
        self.add_digest(other.digest)
        for together, plans in other.used.items():
            self.used[together] = self.used.get(together, 0) + plans
        self.met = {**Counter(self.met) + Counter(other.met)}
        for kind, seeds in other.seeds.items():
            self.seeds.setdefault(kind, []).extend(seeds)
            self.details.setdefault(kind, other.details[kind])

    def add_digest(self, digest: int) -> None:
        """Add the digest of runs. The sum does not depend on the order, so the number of processes does not matter."""
        self.digest = (self.digest + digest) % (1 << 64)

    def summary(self) -> str:
        """Return the line that ends a soak."""
        rate = self.runs / self.seconds if self.seconds else 0.0
        parts = [f"{self.runs} plans", f"{rate:.1f} plans/s"]
        parts += [f"digest {self.digest:016x}"] if self.digest else []
        return " · ".join([*parts, f"{sum(map(len, self.seeds.values()))} undocumented"])

    def __str__(self) -> str:
        lines = []
        for kind, seeds in sorted(self.seeds.items(), key=lambda kind_and_seeds: -len(kind_and_seeds[1])):
            examples = " ".join(str(seed) for seed in sorted(seeds)[:5])
            lines.append(f"{len(seeds):>6}  {kind}  [{examples}]")
        return "\n".join([*lines, *self.reasons(), self.summary()])

    def reasons(self) -> list[str]:
        """Return a line that says in how many plans a reason has excused an entry alone, or, after a plus, only with
        others."""
        alone, others = Counter[str](), Counter[str]()
        for together, plans in self.used.items():
            reasons = together.split(_AND)
            (others if reasons[1:] else alone).update(dict.fromkeys(reasons, plans))
        named = sorted({*alone, *others}, key=lambda reason: (-alone[reason], -others[reason], reason))
        texts = [f"{reason} {alone[reason]}" + (f"+{others[reason]}" * (reason in others)) for reason in named]
        return [f"reasons: {' · '.join(texts)}"] if texts else []


@contextlib.contextmanager
def serving(kind: str) -> Iterator[Server]:
    """Run a server of this kind for one process."""
    if kind == "process":
        yield ProcessServer()
    else:
        with running_redis() if kind == "redis" else running_engine() as server:
            yield server


def soak(
    server: Server, seeds: Iterable[int], tally: Tally | None = None, additions: Sequence[str] = ()
) -> Iterator[Tally]:
    """Run these seeds. Yield the tally so far after each. additions: see plan.make."""
    tally = Tally() if tally is None else tally
    gc.set_threshold(_OBJECTS_PER_COLLECTION)
    with product(server), server.client(decode_responses=True) as client:
        began = time.perf_counter()
        for seed in seeds:
            outcome = run(server, client, make(seed, *additions))
            tally.runs += 1
            tally.batches += outcome.batches
            tally.ticks += outcome.ticks
            tally.add_digest(outcome.digest)
            for together in map(_AND.join, map(sorted, outcome.used)):
                tally.used[together] = tally.used.get(together, 0) + 1
            tally.met = {**Counter(tally.met) + Counter(outcome.met)}
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


def _block(server: Server, seeds: range, additions: Sequence[str]) -> Tally:
    tally = Tally()
    for _ in soak(server, seeds, tally, additions):
        pass
    return tally


def job(kind: str, blocks: Sequence[range], results: Any, additions: Sequence[str]) -> None:
    """Run one process of a soak with its own server. It ends if the process that has started it is killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    with serving(kind) as server:
        for block in blocks:
            results.put((block, _block(server, block, additions)))
            if not parent.is_alive():
                break


def in_parallel(
    kind: str, seeds: range, jobs: int, seconds: float, additions: Sequence[str] = ()
) -> Iterator[tuple[int, Tally]]:
    """Run in several processes, or in this one. Yield again and again (the first seed that has not run, the tally of
    those below)."""
    blocks = [seeds[start : start + _BLOCK] for start in range(0, len(seeds), _BLOCK)]
    tallies, total, began = dict[int, Tally](), Tally(), time.perf_counter()
    next_seed = seeds.start
    for block, tally in _tallies(kind, blocks, jobs, additions):
        tallies[block.start] = tally
        while (next_tally := tallies.pop(next_seed, None)) is not None:
            total.add(next_tally)
            next_seed += next_tally.runs
        total.seconds = time.perf_counter() - began
        yield next_seed, total
        if total.seconds > seconds:
            break


def _tallies(kind: str, blocks: list[range], jobs: int, additions: Sequence[str]) -> Iterator[tuple[range, Tally]]:
    """Yield each block with its tally when it has run."""
    if jobs == 1:
        with serving(kind) as server:
            yield from ((block, _block(server, block, additions)) for block in blocks)
        return
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [
        context.Process(target=job, args=(kind, blocks[first::jobs], results, additions), daemon=True)
        for first in range(jobs)
    ]
    for process in processes:
        process.start()
    try:
        for _ in blocks:
            yield _next_result(results, processes)
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _next_result(results: Any, processes: Sequence[Any]) -> tuple[range, Tally]:
    while True:
        try:
            result: tuple[range, Tally] = results.get(timeout=5)
        except queue.Empty:
            dead = [process for process in processes if process.exitcode]
            if dead:
                raise RuntimeError(f"{len(dead)} of the soak's processes died: see their errors above") from None
        else:
            return result


# -- one run -----------------------------------------------------------------------------------------------------------


def story(kind: str, plan: Plan, complete: bool) -> int:
    """Print one run step by step. Unless `complete`, its plan is shrunk as far as it fails alike."""
    with serving(kind) as server, product(server), server.client(decode_responses=True) as client:
        if not complete:
            plan = shrunk(server, client, plan)
        outcome = run(server, client, plan, print)
        print(plan)
        for failure in outcome.failures:
            print(f"{failure.kind}\n    {failure.details}")
        return bool(outcome.failures)
