"""Look for a play that fails with each mutant (plays.py).

The plays come in blocks. First those of a block run with the product as it is: a survey shows which of them pass, and
which mutants each of them reaches. Then the plays that pass and reach it run with each mutant that is left, in a
process of its own, until one fails. A play fails with a mutant also if it does not end.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkContext, ForkProcess
from typing import Any

from tools.simulation.mutants.mutant import Mutant
from tools.simulation.mutants.plays import is_of_core, player
from tools.simulation.mutants.reach import Reach

_ENDLESS = 20.0  # seconds of processor time for one play


@dataclass
class Search:
    """The search for one mutant. reaching: number of plays that pass without it, and reach it, of so many `plays`;
    tried: how many of them have run with it; failing: how many of these have failed; play, kind: the first of them, and
    its failure."""

    mutant: Mutant
    reaching: int = 0
    plays: int = 0
    tried: int = 0
    failing: int = 0
    play: str = ""
    kind: str = ""
    seconds: float = 0.0

    @property
    def is_found(self) -> bool:
        """Whether a play fails with it."""
        return bool(self.play)

    def add(self, play: str, kind: str | None) -> None:
        """Take the result of a play. kind: of its failure."""
        self.tried += 1
        if kind is not None:
            self.failing += 1
            if not self.play:
                self.play, self.kind = play, kind

    def __str__(self) -> str:
        name = f"{self.mutant.name:<44}"
        if not self.reaching:
            return f"{name} not reached by {self.plays}"
        numbers = f"{self.failing} of {self.tried}, reached by {self.reaching} of {self.plays}, {self.seconds:.0f} s"
        return f"{name} {self.play or 'not found':<40} {numbers} · {self.kind[:90]}"


def survey(reach: Reach, plays: Sequence[str], results: Connection) -> None:
    """Run these plays in this process. Send of each (the play, the kind of its failure or None, reached mutants)."""
    reach.install()
    for of_core, group in itertools.groupby(plays, is_of_core):
        with player(of_core) as failure_of:
            for play in group:
                reach.names.clear()
                kind = failure_of(play)
                results.send((play, kind, set(reach.names)))
    results.close()


def search(mutant: Mutant, plays: Sequence[str], results: Connection) -> None:
    """Run these plays in this process. Send of each (the play, the kind of its failure or None)."""
    mutant.install()
    for of_core, group in itertools.groupby(plays, is_of_core):
        with player(of_core) as failure_of:
            for play in group:
                signal.setitimer(signal.ITIMER_PROF, _ENDLESS)  # SIGPROF ends the process
                results.send((play, failure_of(play)))
    results.close()


@dataclass
class _Running:
    search: Search
    plays: Sequence[str]  # of this block
    process: ForkProcess
    results: Connection
    done: int = 0
    began: float = field(default_factory=time.perf_counter)


@dataclass
class Hunt:
    """Searches for mutants, `jobs` at a time, among the plays of these blocks. first: by mutant the play that it is
    tried with first; sample: so many plays that reach a mutant run in any case."""

    mutants: Sequence[Mutant]
    blocks: Iterable[Sequence[str]]
    jobs: int = 1
    sample: int = 0
    first: dict[str, str] = field(default_factory=dict)
    failing: dict[str, str] = field(default_factory=dict)  # plays that fail with the product as it is

    def __post_init__(self) -> None:
        self._context: ForkContext = multiprocessing.get_context("fork")
        self._reach = Reach(self.mutants)

    def run(self) -> Iterator[Search]:
        """Yield each search when it has ended."""
        left = [Search(mutant) for mutant in self.mutants]
        for block in self.blocks:
            if not left:
                return
            reached = self._survey(block)
            for one in left:
                one.plays += len(block)
                one.reaching += len(reached[one.mutant.name])
            for one in self._searched(list(left), reached):
                if self._is_over(one):
                    left.remove(one)
                    yield one
        yield from left

    def _is_over(self, one: Search) -> bool:
        return one.is_found and one.tried >= self.sample

    def _survey(self, plays: Sequence[str]) -> dict[str, list[str]]:
        """Run plays with the product as it is. Return those that pass and reach a mutant, by its name."""
        reached: dict[str, list[str]] = defaultdict(list)
        running = [self._process(survey, self._reach, plays[nth :: self.jobs])[1] for nth in range(self.jobs)]
        while running:
            for results in wait(running):
                try:
                    play, kind, names = results.recv()  # type: ignore[union-attr]
                except EOFError:
                    running.remove(results)  # type: ignore[arg-type]
                    continue
                if kind is not None:
                    self.failing[play] = kind
                for name in () if kind is not None else names:
                    reached[name].append(play)
        place = {play: number for number, play in enumerate(plays)}
        first = self.first
        return defaultdict(
            list,
            {
                name: sorted(of_name, key=lambda play, name=name: (play != first.get(name), place[play]))  # type: ignore[misc]
                for name, of_name in reached.items()
            },
        )

    def _searched(self, searches: Sequence[Search], reached: dict[str, list[str]]) -> Iterator[Search]:
        """Yield each search when the plays of a block have run, or enough of them."""
        waiting, running = list(searches), list[_Running]()
        with contextlib.ExitStack() as at_end:
            at_end.callback(lambda: [one.process.kill() for one in running])
            while waiting or running:
                while waiting and len(running) < self.jobs:
                    one = waiting.pop(0)
                    plays = reached[one.mutant.name]
                    if plays:
                        running.append(_Running(one, plays, *self._process(search, one.mutant, plays)))
                    else:
                        yield one
                if not running:  # no play of this block reaches the last ones
                    return
                ready = wait([one.results for one in running])
                for ended in [one for one in running if one.results in ready and self._has_ended(one)]:
                    running.remove(ended)
                    ended.search.seconds += time.perf_counter() - ended.began
                    yield ended.search

    def _process(self, target: Callable[..., None], *given: Any) -> tuple[ForkProcess, Connection]:
        receiving, sending = self._context.Pipe(duplex=False)
        process = self._context.Process(target=target, args=(*given, sending), daemon=True)
        process.start()
        sending.close()
        return process, receiving

    def _has_ended(self, one: _Running) -> bool:
        """Take one result. Return whether the process has ended; if it need not go on, end it."""
        try:
            play, kind = one.results.recv()
        except EOFError:
            one.process.join()
            if one.process.exitcode == -signal.SIGPROF:
                one.search.add(one.plays[one.done], "does not end")
            elif one.process.exitcode:
                raise RuntimeError(f"the process with mutant {one.search.mutant.name} has ended: see above") from None
            return True
        one.done += 1
        one.search.add(play, kind)
        if not self._is_over(one.search):
            return False
        one.process.kill()
        one.process.join()
        return True
