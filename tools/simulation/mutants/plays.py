"""What finds a mutant: plays, each with a name, so that another process can play it.

    told/sought back                     a plan by hand, and what its story must tell (told.py)
    event/claim/once/43                  a history, with its event after so many ticks, into this sink (histories.py)
    core/new checkpoint/strict/3         a plan of a scenario, with the model of the core and the product (core_model)
    core/removed, amid/strict/3          the same, amid the commands of the product, and with it alone
    seed/17+faults                       the plan of this seed, with what is added to it
    life/17                              a life of commands (tools.lives)
    tests/…/test_trim.py::test_a         a test, with the bundled engine if it has a server

A play fails if it has a failure, ends the simulation, or does not end. A plan of the core also fails if model and
product differ. What has found each mutant is noted in its table: it is tried first, and a page prints it.
"""

from __future__ import annotations

import contextlib
import io
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
import redis

from tools.lives import processes as of_lives
from tools.lives.run import live
from tools.simulation.core_model.scenarios import SCENARIOS, differences, failures
from tools.simulation.histories import HISTORIES, moments, with_event
from tools.simulation.in_process.server import ProcessServer
from tools.simulation.mutants.mutant import ROOT, Mutant, Note
from tools.simulation.patched import product
from tools.simulation.plan import make
from tools.simulation.run import run
from tools.simulation.setup import Plan
from tools.simulation.told import TOLD, missing

_ADDED = ("", "+faults", "+renew", "+renew+faults")  # to plans of seeds, in turns
SINKS = ("recorder", "once")
SEEDS_OF_CORE = 2  # of each scenario
_ENDLESS = 10.0  # seconds of processor time for one play; those that end take 3 at most
_RIM = ("operations/", "connector/admin/", "connector/retention.py")  # files whose mutants lives of commands look for
# A test is run with modules that this process has imported before.
_QUIETLY = ("-x", "-p", "no:cacheprovider", "-o", "addopts=", "-W", "ignore::pytest.PytestAssertRewriteWarning")
_SCENARIOS = {str(found): found for one in SCENARIOS for found in (one, replace(one, in_step=True))}
Player = Callable[[str], str | None]


def plan_of(play: str) -> Plan:
    """Return the plan of a play that has one."""
    kind, _, name = play.partition("/")
    if kind == "seed":
        seed, *additions = name.split("+")
        return make(int(seed), *additions)
    if kind == "told":
        return TOLD[name].plan
    history, sink, after = name.split("/")
    return with_event(history, int(after), sink)


@contextlib.contextmanager
def player() -> Iterator[Player]:
    """Yield a function that plays a play with the product as this process has it, and returns the kind of its
    failure."""
    process = ProcessServer()
    with product(process), process.client(decode_responses=True) as client:
        yield lambda play: _failure(process, client, play)


@contextlib.contextmanager
def _player_of_lives() -> Iterator[Player]:
    process = ProcessServer()
    with of_lives.product(process):
        yield lambda play: _fault(process, int(play.removeprefix("life/")))


def _fault(server: ProcessServer, seed: int) -> str | None:
    try:
        return next(iter(live(server, seed).faults), "")[:160] or None
    except Exception as error:  # noqa: BLE001 - of a product that is broken on purpose
        return f"ends the life | {type(error).__name__}: {str(error)[:80]}"


@contextlib.contextmanager
def _player_of_tests() -> Iterator[Player]:
    yield _failed_test


class _Watch:
    """A plugin of pytest: the tests of the bundled engine, and what they report."""

    def __init__(self) -> None:
        self.failures: list[str] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if "redis" not in re.split(r"[][-]", item.name)]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        crash = getattr(report.longrepr, "reprcrash", None)
        if report.failed:
            self.failures.append(str(report.longrepr) if crash is None else crash.message)


def _failed_test(node: str) -> str | None:
    watch = _Watch()
    with contextlib.redirect_stdout(io.StringIO()) as output:
        code = pytest.main([*_QUIETLY, str(ROOT / node)], plugins=[watch])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise ValueError(f"{node} cannot be run: {output.getvalue()}")
    return next((text.splitlines()[0][:160] for text in watch.failures), None)


def _failure(server: ProcessServer, client: redis.Redis, play: str) -> str | None:
    kind, _, name = play.partition("/")
    try:
        if kind == "told":
            return missing(server, client, name)
        if kind == "core":
            of_seed, _, seed = name.rpartition("/")
            scenario = _SCENARIOS[of_seed]
            if scenario.in_step:
                return next(iter(differences(server, client, scenario, int(seed))), None)
            return next((one.kind for one in failures(server, client, scenario, int(seed), is_model=False)), None)
        return next((one.kind for one in run(server, client, plan_of(play)).failures), None)
    except Exception as error:  # noqa: BLE001 - of a product that is broken on purpose
        return f"ends the simulation | {type(error).__name__}: {str(error)[:80]}"


class _EndlessError(BaseException):
    """A play does not end. No code of the product may catch it."""


def _end(*_: object) -> None:
    raise _EndlessError


def finder_of(mutant: Mutant, seeds: Sequence[int]) -> Note | None:
    """Look for a play that finds a mutant, in this process: first what has found it last. seeds: of plans that come
    last."""
    known = [mutant.found.play] if mutant.found is not None else []
    is_of_rim = mutant.file.startswith(_RIM) or (known and known[0].startswith(("life/", "tests/")))
    more = [f"life/{seed}" for seed in seeds] if is_of_rim else _all_plays(seeds)
    return _finder_among(mutant, known) or _finder_among(mutant, more)


def _finder_among(mutant: Mutant, plays: Sequence[str]) -> Note | None:
    """Play with the mutant until a play fails that does not fail without it."""
    signal.signal(signal.SIGPROF, _end)
    players = {"life": _player_of_lives, "tests": _player_of_tests}
    kind_of_play = "".join(plays[:1]).partition("/")[0]
    with players.get(kind_of_play, player)() as failure_of:
        for play in plays:
            mutant.install()
            signal.setitimer(signal.ITIMER_PROF, _ENDLESS)
            try:
                kind = failure_of(play)
            except _EndlessError:  # so did the process: it plays nothing more
                return Note(play, "does not end")
            signal.setitimer(signal.ITIMER_PROF, 0)
            mutant.remove()
            if kind is not None and (without := failure_of(play)) is None:
                return Note(play, " ".join(kind.split()))
            if kind is not None:
                print(f"fails without a mutant: {play} · {without}", flush=True)
    return None


def _all_plays(seeds: Sequence[int]) -> list[str]:
    """Return the names of all plays, those that find most for their time first. It runs each history once."""
    server = ProcessServer()
    with product(server), server.client(decode_responses=True) as client:
        of_events = [
            f"event/{name}/{sink}/{after}"
            for name in HISTORIES
            for sink in SINKS
            for after in moments(server, client, name, sink)
        ]
    of_core = [f"core/{name}/{seed}" for seed in range(SEEDS_OF_CORE) for name in _SCENARIOS]
    of_seeds = [f"seed/{seed}{_ADDED[seed % len(_ADDED)]}" for seed in seeds]
    return [*(f"told/{name}" for name in TOLD), *of_events, *of_core, *of_seeds]
