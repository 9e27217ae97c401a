"""Look for a plan that fails with each mutant.

First the plans run with the product as it is: a survey shows which of them pass, and which mutants each of them
reaches. Then the plans that pass and reach it run with each mutant, in a process of its own, until one fails. All
mutants get the same plans: each seed once, with one of MIX added. A plan fails if it has a failure that is not
documented, if it ends the simulation, or if it does not end.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any

from tools.simulation.mutants.mutant import Mutant
from tools.simulation.mutants.reach import Reach

MIX: tuple[tuple[str, ...], ...] = ((), ("faults",), ("renew",), ("renew", "faults"))
_ENDLESS = 30.0  # seconds of processor time for one plan
_PRELOADED = ["pyarrow.compute", "pyspark.sql.datasource", "pyspark.sql.types", "numpy", "redis", "hiredis", "pytest"]


def additions_of(seed: int) -> tuple[str, ...]:
    """Return what is added to the plan of this seed."""
    return MIX[seed % len(MIX)]


@dataclass(frozen=True)
class Found:
    """A plan that fails. kind: of its failure."""

    seed: int
    kind: str

    def __str__(self) -> str:
        words = [f"--add {name}" for name in additions_of(self.seed)]
        return " ".join(["--story", str(self.seed), *words])


@dataclass
class Search:
    """The search for one mutant. reaching: seeds of the plans that pass without it, and reach it; tried: how many of
    them have run; failing: how many of these fail; after: plans up to the first one that fails, of all plans."""

    mutant: Mutant
    reaching: Sequence[int]
    plans: int
    tried: int = 0
    first: Found | None = None
    after: int = 0
    failing: int = 0
    seconds: float = 0.0

    def add(self, found: Found, first_seed: int) -> None:
        """Take a plan that fails."""
        self.failing += 1
        if self.first is None:
            self.first, self.after = found, found.seed - first_seed + 1

    def __str__(self) -> str:
        name, file = f"{self.mutant.name:<44}", f"{self.mutant.file:<36}"
        reached = f"reached by {len(self.reaching)} of {self.plans}"
        if self.first is None:
            return f"{name} {file} not found · {reached} · {self.seconds:.0f} s"
        many = f"{self.failing} of {self.tried} that reach it · " if self.tried > self.failing else ""
        where = f"plan {self.after} · {many}{reached} · {self.seconds:.0f} s · {self.first}"
        return f"{name} {file} {where} · {self.first.kind[:90]}"


@contextlib.contextmanager
def plans() -> Iterator[Callable[[int], str | None]]:
    """Yield a function that runs the plan of a seed with the product as this process has it. It returns the kind of the
    plan's failure, if it has one that is not documented."""
    from tools.simulation import documented
    from tools.simulation.in_process.server import ProcessServer
    from tools.simulation.patched import product
    from tools.simulation.plan import make
    from tools.simulation.run import run

    server = ProcessServer()

    def failure_of(seed: int) -> str | None:
        try:
            failures = run(server, client, make(seed, *additions_of(seed))).failures[:1]
        except Exception as error:  # noqa: BLE001 - of a product that is broken on purpose
            return f"ends the simulation | {type(error).__name__}: {str(error)[:80]}"
        return next((one.kind for one in failures if documented.reason_of(one.kind) is None), None)

    with product(server), server.client(decode_responses=True) as client:
        yield failure_of


def survey(mutants: Sequence[Mutant], seeds: range, results: Connection) -> None:
    """Run these plans in this process. Send of each (its seed, the kind of its failure or None, reached mutants)."""
    reach = Reach(mutants)
    reach.install()
    with plans() as failure_of:
        always = set(reach.names)
        for seed in seeds:
            reach.names.clear()
            kind = failure_of(seed)
            results.send((seed, kind, always | reach.names))
    results.close()


def search(mutant: Mutant, seeds: Sequence[int], results: Connection) -> None:
    """Run these plans in this process. Send of each (its seed, the kind of its failure or None)."""
    mutant.install()
    with plans() as failure_of:
        for seed in seeds:
            signal.setitimer(signal.ITIMER_PROF, _ENDLESS)  # SIGPROF ends the process
            results.send((seed, failure_of(seed)))
    results.close()


@dataclass
class _Running:
    search: Search
    process: ForkServerProcess
    results: Connection
    began: float = field(default_factory=time.perf_counter)


@dataclass
class Hunt:
    """Searches for mutants, `jobs` at a time, among the plans of these seeds. sample: so many plans that reach a mutant
    run in any case."""

    mutants: Sequence[Mutant]
    seeds: range
    jobs: int = 1
    sample: int = 0
    failing: dict[int, str] = field(default_factory=dict)  # plans that fail with the product as it is
    reached: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))  # by mutant: plans that pass

    def __post_init__(self) -> None:
        self._context: ForkServerContext = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(_PRELOADED)

    def survey(self) -> None:
        """Run all plans with the product as it is."""
        share = -(-len(self.seeds) // self.jobs)
        parts = [self.seeds[at : at + share] for at in range(0, len(self.seeds), share)]
        running = [self._process(survey, self.mutants, part)[1] for part in parts]
        while running:
            for results in wait(running):
                try:
                    seed, kind, names = results.recv()  # type: ignore[union-attr]
                except EOFError:
                    running.remove(results)  # type: ignore[arg-type]
                    continue
                if kind is not None:
                    self.failing[seed] = kind
                for name in () if kind is not None else names:
                    self.reached[name].append(seed)

    def run(self) -> Iterator[Search]:
        """Yield each search when it has ended."""
        if not self.reached:
            self.survey()
        waiting, running = list(self.mutants), list[_Running]()
        with contextlib.ExitStack() as at_end:
            at_end.callback(lambda: [one.process.kill() for one in running])
            while waiting or running:
                while waiting and len(running) < self.jobs:
                    running.append(self._begin(waiting.pop(0)))
                ready = wait([one.results for one in running])
                for one in [one for one in running if one.results in ready]:
                    if self._is_over(one):
                        running.remove(one)
                        one.search.seconds = time.perf_counter() - one.began
                        yield one.search

    def _begin(self, mutant: Mutant) -> _Running:
        seeds = sorted(self.reached[mutant.name])
        return _Running(Search(mutant, seeds, len(self.seeds)), *self._process(search, mutant, seeds))

    def _process(self, target: Callable[..., None], *given: Any) -> tuple[ForkServerProcess, Connection]:
        receiving, sending = self._context.Pipe(duplex=False)
        process = self._context.Process(target=target, args=(*given, sending), daemon=True)
        process.start()
        sending.close()
        return process, receiving

    def _is_over(self, one: _Running) -> bool:
        """Take one result. Return whether the search has ended."""
        tried, first_seed = one.search, self.seeds[0]
        try:
            seed, kind = one.results.recv()
        except EOFError:
            one.process.join()
            if one.process.exitcode and tried.tried < len(tried.reaching):
                seed, kind = tried.reaching[tried.tried], f"does not end ({one.process.exitcode})"
                tried.tried += 1
                tried.add(Found(seed, kind), first_seed)
            return True
        tried.tried += 1
        if kind is not None:
            tried.add(Found(seed, kind), first_seed)
        if tried.first is None or tried.tried < self.sample:
            return False
        one.process.kill()
        one.process.join()
        return True
