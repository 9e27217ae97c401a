"""Break queries at random: `scripts/chaos [--minutes N] [--seed S] [--only FAULT]`.

Each run has its own seed. A failed run prints the seed, its faults, and the command that repeats it. The queries of a
run write exactly tasks.once, to files or to a stream; the seed or `--sink` selects which.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tools.chaos import drivers, servers, tasks
from tools.chaos.query import SINKS
from tools.chaos.stage import Replicated, Spark, Stage, client_of
from tools.servers.cluster import running_cluster
from tools.servers.sentinels import running_sentinels
from tools.servers.server import redis_server_path, running_engine, running_redis
from tools.waiting import exit_at_sigterm

# -- the scenes by their names ----------------------------------------------------------------------------------------

SINGLE = ("engine", "redis")


@dataclass(frozen=True)
class Scene:
    """A scene of the table."""

    name: str
    play: Callable[[Stage], object]
    kinds: Sequence[str] = SINGLE  # of servers
    sink: str = ""  # of its queries; "": any


def _scenes() -> Iterator[Scene]:
    for point in drivers.KILLS:
        yield Scene(f"driver killed: {point}", partial(drivers.killed, points=[point]))
    for point in drivers.STOPS:
        yield Scene(f"driver stopped: {point}", partial(drivers.stopped, points=[point]))
    for fault in tasks.EXECUTOR_FAILURES:
        yield Scene(f"on executors: {fault}", partial(tasks.failed_on_executors, faults=[fault]))
    yield Scene("ends with once", tasks.once)
    yield Scene("ends with availableNow", tasks.available_now)
    yield Scene("server killed", partial(servers.struck_server, strike=servers.server_killed))
    yield Scene("server paused", partial(servers.struck_server, strike=servers.server_paused))
    yield Scene("server restarted", servers.restarted)
    yield Scene("sink away, many restarts", servers.many_restarts, sink="stream")
    yield Scene("retries, driver killed", drivers.retried)
    yield Scene("zombie task", tasks.zombie, sink="stream")
    yield Scene("zombie of an old run", partial(tasks.zombie, of_an_old_run=True), sink="stream")
    for fault in tasks.FAILURES:
        yield Scene(fault, partial(tasks.failed, fault=fault))
    for name, strike in servers.CLUSTER_FAULTS.items():
        yield Scene(f"cluster: {name}", partial(servers.replaced, strike=strike), ["cluster"])
    for name, strike in servers.SENTINEL_FAULTS.items():
        yield Scene(f"sentinel: {name}", partial(servers.replaced, strike=strike), ["sentinel"])
    yield Scene("shards: writers and readers killed", drivers.sharded, [*SINGLE, "cluster"], "stream")


SCENES = {scene.name: scene for scene in _scenes()}


# -- a run -------------------------------------------------------------------------------------------------------------

REPLICATED: Mapping[str, Callable[[], contextlib.AbstractContextManager[Replicated]]] = {
    "cluster": running_cluster,
    "sentinel": running_sentinels,
}
_COLUMNS = ("runs", "lost", "twice", "reordered", "early", "pending", "other", "failed")
Tally = dict[str, Counter[str]]  # sums by scene


class Shell:
    """Plays scenes. servers: kind → URL; folder: holds the files of runs."""

    def __init__(
        self,
        servers: Mapping[str, str],
        replicated: Mapping[str, Replicated],
        folder: Path,
        spark: Callable[[], Spark],
        console: Console,
    ) -> None:
        self._servers, self._replicated, self._folder, self._spark = servers, replicated, folder, spark
        self._console = console
        self.tally: Tally = {}

    def play(self, scene: Scene, kind: str, seed: int, sink: str | None) -> None:
        """Play a scene on one server, count what is wrong, and print a line. sink: None: the seed selects."""
        sink = scene.sink or sink or random.Random(f"sink {seed}").choice(SINKS)
        folder = self._folder / f"{scene.name.replace(' ', '-').replace(':', '')}-{kind}-{sink}-{seed}"
        began, row = time.monotonic(), self.tally.setdefault(scene.name, Counter())
        row["runs"] += 1
        stage = Stage(
            folder, {kind: self._servers[kind]}, random.Random(seed), sink, self._spark, self._replicated.get(kind)
        )
        try:
            if stage.replicated is not None:
                stage.replicated.healthy()
            with client_of(self._servers[kind]) as client:
                client.flushall()
            with stage:
                scene.play(stage)
            wrong = "" if stage.is_right() else str(stage)
        except Exception as error:  # noqa: BLE001 - the other scenes continue, and the table shows the error
            traceback.print_exc()
            row["failed"] += 1
            wrong = f"{type(error).__name__}: {error}"[:500]
        for case in stage.cases.values():
            row["other"] += len(case.wrong)
            for name, count in case.report.counts().items():
                row[name if name in _COLUMNS else "other"] += count
        verdict = f"[red]WRONG[/] {wrong}" if wrong else "ok"
        at = f"{scene.name} on {kind}, {sink}, seed {seed}"
        self._console.print(f"{at}: {verdict} ({time.monotonic() - began:.1f} s)")
        if wrong:
            repeat = f"scripts/chaos --only '{scene.name}' --server {kind} --sink {sink} --seed {seed} --runs 1"
            self._console.print(f"  repeat: {repeat}; files: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)

    def is_bad(self) -> bool:
        """Whether any run has a fault."""
        return any(count for row in self.tally.values() for kind, count in row.items() if kind != "runs")

    def show(self, title: str) -> None:
        """Print the table."""
        table = Table(title=title, title_justify="left", pad_edge=False)
        table.add_column("fault", no_wrap=True)
        for column in _COLUMNS:
            table.add_column(column, justify="right")
        for name, row in self.tally.items():
            bad = [f"[red]{row[column]}[/]" if row[column] else "0" for column in _COLUMNS[1:]]
            table.add_row(name, str(row["runs"]), *bad)
        self._console.print(table)


def main() -> int:
    """Play scenes until the time is over. Return 1 if a run failed."""
    exit_at_sigterm()
    kinds = (*SINGLE, *REPLICATED)
    parser = argparse.ArgumentParser(prog="scripts/chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, metavar="N", help="minutes to run (default 5)")
    parser.add_argument("--runs", type=int, metavar="N", help="number of runs, instead of --minutes")
    parser.add_argument("--seed", type=int, metavar="S", help="seed of the first run and of all choices")
    parser.add_argument("--only", metavar="FAULT", help="only faults whose name contains FAULT")
    parser.add_argument("--server", choices=kinds, help="kind of server (default: engine and redis)")
    parser.add_argument("--sink", choices=[*SINKS, "both"], help="sink of the queries (default: by the seed)")
    parser.add_argument("--list", action="store_true", help="print the names of all faults")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(SCENES))
        return 0
    only = arguments.only or ""
    scenes = [SCENES[only]] if only in SCENES else [scene for name, scene in SCENES.items() if only in name]
    if not scenes:
        parser.error(f"no fault's name contains {only!r}: --list prints the names")
    kinds = (arguments.server,) if arguments.server else SINGLE
    runs = [(scene, kind) for scene in scenes for kind in kinds if kind in scene.kinds]
    if not runs:
        parser.error(f"this fault cannot happen on {' and '.join(kinds)}: select another server with --server")
    if redis_server_path() is None and any(kind != "engine" for _, kind in runs):
        print("chaos: redis-server is not installed. The faults run on the bundled engine only.", file=sys.stderr)
        runs = [(scene, kind) for scene, kind in runs if kind == "engine"]
    if not runs:
        return 1
    seed = random.SystemRandom().randrange(1_000_000) if arguments.seed is None else arguments.seed
    console = Console(emoji=False, highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 110)
    console.print(f"seed {seed}")  # repeated in the last line, because the table scrolls
    sinks = [*SINKS] if arguments.sink == "both" else [arguments.sink]
    return _play_all([(*run, sink) for run in runs for sink in sinks], seed, arguments, console)


def _play_all(
    runs: Sequence[tuple[Scene, str, str | None]], seed: int, arguments: argparse.Namespace, console: Console
) -> int:
    """Play until the time or the number of runs is over; each once before any twice."""
    began, chance, number = time.monotonic(), random.Random(seed), 0
    with _shell({kind for _, kind, _ in runs}, console) as shell:
        waiting: list[tuple[Scene, str, str | None]] = []
        with contextlib.suppress(KeyboardInterrupt):
            while (
                number < (arguments.runs or 0) if arguments.runs else time.monotonic() < began + 60 * arguments.minutes
            ):
                if not waiting:
                    waiting = chance.sample(runs, len(runs))
                scene, kind, sink = waiting.pop()
                shell.play(scene, kind, chance.randrange(1_000_000) if number else seed, sink)
                number += 1
    shell.show(f"{number} runs in {(time.monotonic() - began) / 60:.1f} minutes")
    console.print(f"seed {seed}")
    return int(shell.is_bad())


@contextlib.contextmanager
def _shell(kinds: set[str], console: Console) -> Iterator[Shell]:
    """Start these servers, and Spark when a scene needs it. The folder is left if a run has left files."""
    with contextlib.ExitStack() as stack:
        replicated: dict[str, Replicated] = {
            kind: stack.enter_context(running()) for kind, running in REPLICATED.items() if kind in kinds
        }
        servers = {kind: servers.url for kind, servers in replicated.items()}
        for kind in kinds & set(SINGLE):
            servers[kind] = stack.enter_context(running_engine() if kind == "engine" else running_redis()).url
        folder = Path(tempfile.mkdtemp(prefix="rstream-chaos-"))
        sparks = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rstream-chaos-spark-")))
        yield Shell(servers, replicated, folder, cache(lambda: stack.enter_context(Spark(sparks, threads=2))), console)
        with contextlib.suppress(OSError):  # it is not empty
            folder.rmdir()


if __name__ == "__main__":
    sys.exit(main())
