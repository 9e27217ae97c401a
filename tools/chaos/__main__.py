"""Break queries at random: `scripts/chaos [--minutes N] [--seed S] [--only FAULT]`.

Each run has its own seed. A failed run prints the seed, its faults, and the command that repeats it. The queries of a
run write exactly once, to files or to a stream; the seed or `--sink` selects which.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from spark_streams.operations.verify.history import Report
from tools.chaos import failed_tasks, keyed, killed_driver, replaced_masters, retries, scenes, stopped_driver
from tools.chaos.job import session
from tools.chaos.producer import client_of
from tools.chaos.query import SINKS
from tools.chaos.scene import Outcome, Scene
from tools.servers.cluster import RedisCluster
from tools.servers.server import redis_server_path, running_engine, running_redis

_COLUMNS = ("lost", "duplicated", "reordered", "early", "pending")


@dataclass
class Verdict:
    """Verdict on one run.

    counts: faults by kind; wrong: other faults; failed: error that stopped the run itself; choices: of its random
    generator.
    """

    counts: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    failed: str = ""
    text: str = ""
    choices: str = ""

    @classmethod
    def from_report(cls, report: Report, wrong: Sequence[str] = (), choices: str = "") -> Verdict:
        """Return the verdict on a completed run."""
        return cls(report.faults(), list(wrong), text=str(report) if report else "", choices=choices)

    def __bool__(self) -> bool:
        """Whether anything is wrong."""
        return bool(self.counts or self.wrong or self.failed)

    def __str__(self) -> str:
        choices = f"({self.choices})" if self.choices else ""
        return "; ".join(part for part in (choices, *self.wrong, self.text, self.failed[:500]) if part)


class Tally:
    """Sums by fault."""

    def __init__(self, faults: Sequence[str]) -> None:
        self._rows: dict[str, Counter[str]] = {fault: Counter() for fault in faults}

    def add(self, fault: str, verdict: Verdict) -> None:
        """Add a run."""
        row = self._rows[fault]
        row["runs"] += 1
        row["failed"] += bool(verdict.failed)
        row["other"] += len(verdict.wrong)
        for kind, count in verdict.counts.items():
            row[kind if kind in _COLUMNS else "other"] += count

    @property
    def is_bad(self) -> bool:
        """Whether any run has a fault."""
        return any(count for row in self._rows.values() for kind, count in row.items() if kind != "runs")

    def show(self, title: str, console: Console) -> None:
        """Print the table."""
        table = Table(title=title, title_justify="left", pad_edge=False)
        columns = ("runs", *_COLUMNS, "other", "failed")
        table.add_column("fault", no_wrap=True)
        for column in columns:
            table.add_column(column, justify="right")
        for fault, row in self._rows.items():
            if not row["runs"]:
                continue
            shown = [str(row[column]) for column in columns]
            shown[1:] = [f"[red]{text}[/]" if text != "0" else text for text in shown[1:]]
            table.add_row(fault, *shown)
        console.print(table)


# Faults that need no other process, by their name in the table.
SCENES: Mapping[str, Callable[[Scene], Outcome]] = {
    "ends with once": scenes.once,
    "ends with availableNow": scenes.available_now,
    "server killed": scenes.killed,
    "server paused": scenes.paused,
    "server restarted": scenes.restarted,
    "sink away, many restarts": scenes.many_restarts,
    "retries, driver killed": retries.killed,
    "zombie task": scenes.task,
    "zombie of an old run": scenes.of_an_old_run,
    **{name: failed_tasks.scene_of(name) for name in failed_tasks.FAULTS},
}
# Faults of the Redis Streams sink.
INTO_A_STREAM = (
    "sink away, many restarts",
    "zombie task",
    "zombie of an old run",
    keyed.NAME,
)
# Faults of servers that replace each other, by kind of server.
REPLICATED = replaced_masters.FAULTS
DRIVER, STOPPED, EXECUTOR = "driver killed: ", "driver stopped: ", "on executors: "
FAULTS = [
    *(DRIVER + point for point in killed_driver.POINTS),
    *(STOPPED + point for point in stopped_driver.POINTS),
    *(EXECUTOR + fault for fault in failed_tasks.EXECUTOR_FAULTS),
    *SCENES,
    *(fault for faults in REPLICATED.values() for fault in faults),
    keyed.NAME,
]
SINGLE = ("engine", "redis")
KINDS = (*SINGLE, *REPLICATED)


def supports(kind: str, fault: str) -> bool:
    """Whether this fault can happen on servers of this kind."""
    if fault == keyed.NAME:
        return kind in keyed.KINDS
    return (
        fault in REPLICATED[kind] if kind in REPLICATED else not any(fault in faults for faults in REPLICATED.values())
    )


class Chaos:
    """Runs faults in one Spark session.

    servers: kind → URL; replicated: kind → all servers behind that URL; folder: holds the runs' files.
    """

    def __init__(
        self, servers: Mapping[str, str], folder: Path, replicated: Mapping[str, replaced_masters.ReplicatedServers]
    ) -> None:
        self.servers, self.folder, self._replicated = servers, folder, replicated
        self._spark: SparkSession | None = None

    def run(self, fault: str, kind: str, seed: int, sink: str) -> Verdict:
        """Run one fault on one server, under queries with this sink."""
        folder = self.folder_of(fault, kind, seed, sink)
        urls = {kind: self.servers[kind]}
        if kind in REPLICATED:
            self._replicated[kind].healthy()
        with client_of(self.servers[kind]) as client:
            client.flushall()
        if fault == keyed.NAME:
            cluster = self._replicated.get(kind)
            assert cluster is None or isinstance(cluster, RedisCluster)
            judged = keyed.run(folder, self.servers[kind], seed, cluster=cluster)
            return Verdict(wrong=judged.faults(), choices=str(judged))
        if fault.startswith(DRIVER):
            killed = killed_driver.run(folder, urls, seed, [fault.removeprefix(DRIVER)], sink)
            return Verdict.from_report(killed[f"{fault.removeprefix(DRIVER)}, {kind}"].report)
        if fault.startswith(STOPPED):
            stopped = stopped_driver.run(folder, urls, seed, [fault.removeprefix(STOPPED)], sink)
            return Verdict.from_report(stopped[f"{fault.removeprefix(STOPPED)}, {kind}"].report)
        if fault.startswith(EXECUTOR):
            failed = failed_tasks.run_on_executors(folder, urls, seed, [fault.removeprefix(EXECUTOR)], sink)
            case = failed[f"{fault.removeprefix(EXECUTOR)}, {kind}"]
            return Verdict.from_report(case.report, [] if case.struck else ["the fault did not happen"])
        scene = Scene(self._session(), folder, kind, self.servers[kind], "s", random.Random(seed), sink)
        with contextlib.closing(scene):
            if kind in REPLICATED:
                outcome = replaced_masters.run_under_faults(scene, self._replicated[kind], REPLICATED[kind][fault])
            else:
                outcome = SCENES[fault](scene)
        return Verdict.from_report(outcome.report, outcome.wrong, outcome.choices)

    def folder_of(self, fault: str, kind: str, seed: int, sink: str) -> Path:
        """Return the folder of a run."""
        return self.folder / f"{fault.replace(' ', '-').replace(':', '')}-{kind}-{sink}-{seed}"

    def _session(self) -> SparkSession:
        if self._spark is None:
            self._spark = session("local[2,4]", {})
        return self._spark

    def close(self) -> None:
        """Stop Spark."""
        if self._spark is not None:
            self._spark.stop()


def main() -> int:
    """Run faults until the time is over. Return 1 if a run failed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the exit handlers stop servers and Spark
    parser = argparse.ArgumentParser(prog="scripts/chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, metavar="N", help="minutes to run (default 5)")
    parser.add_argument("--runs", type=int, metavar="N", help="number of runs, instead of --minutes")
    parser.add_argument("--seed", type=int, metavar="S", help="seed of the first run and of all choices")
    parser.add_argument("--only", metavar="FAULT", help="only faults whose name contains FAULT")
    parser.add_argument("--server", choices=KINDS, help="kind of server (default: engine and redis)")
    parser.add_argument("--sink", choices=[*SINKS, "both"], help="sink of the queries (default: by the seed)")
    parser.add_argument("--list", action="store_true", help="print the names of all faults")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(FAULTS))
        return 0
    faults = [fault for fault in FAULTS if fault == arguments.only] or [
        f for f in FAULTS if (arguments.only or "") in f
    ]
    if not faults:
        parser.error(f"no fault's name contains {arguments.only!r}: --list prints the names")
    kinds = [arguments.server] if arguments.server else [*SINGLE]
    faults = [fault for fault in faults if any(supports(kind, fault) for kind in kinds)]
    if not faults:
        kind = arguments.server or " and ".join(SINGLE)
        parser.error(f"this fault cannot happen on {kind}: select another server with --server")
    if kinds != ["engine"] and redis_server_path() is None:
        print("chaos: redis-server is not installed. The faults run on the bundled engine only.", file=sys.stderr)
        kinds = [kind for kind in kinds if kind == "engine"]
    if not kinds:
        return 1
    seed = random.SystemRandom().randrange(1_000_000) if arguments.seed is None else arguments.seed
    console = Console(emoji=False, highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 110)
    console.print(f"seed {seed}")  # repeated in the last line, because the table scrolls
    sinks: list[str | None] = [*SINKS] if arguments.sink == "both" else [arguments.sink]
    return _run_all(faults, kinds, sinks, seed, arguments.minutes, arguments.runs, console)


def _run_all(
    faults: list[str],
    kinds: list[str],
    sinks: list[str | None],
    seed: int,
    minutes: float,
    runs: int | None,
    console: Console,
) -> int:
    """Run faults until the time or the number of runs is over. In `sinks`, None means that the run's seed selects."""
    began, choices = time.monotonic(), random.Random(seed)
    tally = Tally(faults)
    waiting: list[tuple[str, str, str | None]] = []
    with contextlib.ExitStack() as stack:
        replicated = {kind: stack.enter_context(replaced_masters.running(kind)) for kind in kinds if kind in REPLICATED}
        servers = {kind: servers.url for kind, servers in replicated.items()} | {
            kind: stack.enter_context(running_engine() if kind == "engine" else running_redis()).url
            for kind in kinds
            if kind in SINGLE
        }
        folder = Path(tempfile.mkdtemp(prefix="rstream-chaos-"))
        chaos = Chaos(servers, folder, replicated)
        stack.callback(chaos.close)
        number = 0
        try:
            while number < runs if runs is not None else time.monotonic() - began < 60 * minutes:
                if not waiting:  # every fault runs once before any fault runs twice
                    waiting = [(f, kind, sink) for f in faults for kind in kinds if supports(kind, f) for sink in sinks]
                    choices.shuffle(waiting)
                fault, kind, sink = waiting.pop()
                its_seed = seed if number == 0 else choices.randrange(1_000_000)
                number += 1
                _run_one(chaos, fault, kind, its_seed, sink_of(fault, sink, its_seed), tally, console)
        except KeyboardInterrupt:
            console.print("stopped")
        if not any(folder.iterdir()):
            folder.rmdir()
    tally.show(f"{number} runs in {(time.monotonic() - began) / 60:.1f} minutes", console)
    console.print(f"seed {seed}")
    return 1 if tally.is_bad else 0


def sink_of(fault: str, requested: str | None, seed: int) -> str:
    """Return the sink of a run: the requested one, or one that the seed selects."""
    if fault in INTO_A_STREAM:
        return "stream"
    return requested or random.Random(f"sink {seed}").choice(SINKS)


def _run_one(chaos: Chaos, fault: str, kind: str, seed: int, sink: str, tally: Tally, console: Console) -> None:
    began = time.monotonic()
    try:
        verdict = chaos.run(fault, kind, seed, sink)
    except Exception as error:  # noqa: BLE001 - the other faults continue, and the table shows the error
        traceback.print_exc()
        verdict = Verdict(failed=f"{type(error).__name__}: {error}")
    tally.add(fault, verdict)
    shown = "ok" if not verdict else f"[red]WRONG[/] {verdict}"
    console.print(f"{fault} on {kind}, {sink}, seed {seed}: {shown} ({time.monotonic() - began:.1f} s)")
    if verdict:
        console.print(
            f"  repeat: scripts/chaos --only '{fault}' --server {kind} --sink {sink} --seed {seed} --runs 1; "
            f"files: {chaos.folder_of(fault, kind, seed, sink)}"
        )
    else:
        shutil.rmtree(chaos.folder_of(fault, kind, seed, sink), ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
