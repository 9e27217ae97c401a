"""Break queries at random for as long as one likes: `scripts/chaos [--minutes N] [--seed S] [--only FAULT]`.

Every run has a seed of its own, which is printed with what went wrong, and how to replay it. A run's queries write to
files that replace each other or to a stream, exactly once, as its seed says or `--sink`.
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
from collections.abc import Callable, Mapping
from pathlib import Path

from pyspark.sql import SparkSession
from rich.console import Console

from tools.chaos import (
    appearing_streams,
    away_sink,
    broken_server,
    changed_streams,
    consumers,
    endings,
    evicted_keys,
    failed_tasks,
    keyed,
    killed_driver,
    operators,
    replaced_masters,
    restored_server,
    retries,
    rolled_back,
    stopped_driver,
    taken_entries,
    zombies,
)
from tools.chaos.clients import client_of
from tools.chaos.job import session
from tools.chaos.query import SINKS
from tools.chaos.scene import Outcome, Scene
from tools.chaos.tally import Tally, Verdict
from tools.servers.cluster import RedisCluster
from tools.servers.server import redis_server_path, running_engine, running_redis

# What needs no process but this one, by the name that the table shows.
SCENES: Mapping[str, Callable[[Scene], Outcome]] = {
    "trimmed past the offset": changed_streams.trimmed_past_the_offset,
    "deleted while pending": changed_streams.deleted_while_pending,
    "group destroyed": changed_streams.group_destroyed,
    "stream deleted": changed_streams.stream_deleted,
    "flushed": changed_streams.flushed,
    "dead consumer": consumers.dead_consumer,
    "living consumer": consumers.living_consumer,
    "second query": consumers.double_query,
    "ordered claims": consumers.ordered_claims,
    "taken at a moment": taken_entries.taken_at_a_moment,
    "taken while running": taken_entries.taken_while_running,
    "replayed after trimming": taken_entries.replayed_after_trimming,
    "checkpoint rolled back": rolled_back.rolled_back,
    **{f"operator {hand}": operators.scene_of(hand) for hand in operators.HANDS},
    "keys evicted": evicted_keys.at_a_moment,
    "streams come and go": appearing_streams.random_steps,
    "no stream at the start": appearing_streams.none_at_the_start,
    "all streams rotated away": appearing_streams.all_rotated_away,
    "streams appear while down": appearing_streams.while_down,
    "letters match the pattern": appearing_streams.letters_match,
    "ends with once": endings.once,
    "ends with availableNow": endings.available_now,
    "server killed": broken_server.killed,
    "server paused": broken_server.paused,
    "server restarted": broken_server.restarted,
    "source restored from an older file": restored_server.source,
    "sink away, many restarts": away_sink.many_restarts,
    "tried again, killed": retries.killed,
    "zombie task": zombies.task,
    "zombie of an old run": zombies.of_an_old_run,
    **{name: failed_tasks.scene_of(name) for name in failed_tasks.FAULTS},
}
# These are about the product's own sink.
INTO_A_STREAM = (
    "replayed after trimming",
    "sink away, many restarts",
    "zombie task",
    "zombie of an old run",
    keyed.NAME,
)
# What happens where several servers take each other's place, by their kind.
SEVERAL = replaced_masters.BLOWS
DRIVER, STOPPED, EXECUTOR = "driver killed: ", "driver stopped: ", "on executors: "
FAULTS = [
    *(DRIVER + point for point in killed_driver.POINTS),
    *(STOPPED + point for point in stopped_driver.POINTS),
    *(EXECUTOR + fault for fault in failed_tasks.EXECUTOR_FAULTS),
    *SCENES,
    *(fault for blows in SEVERAL.values() for fault in blows),
    keyed.NAME,
]
ONE = ("engine", "redis")
KINDS = (*ONE, *SEVERAL)


def has(kind: str, fault: str) -> bool:
    """Whether servers of this kind can have it."""
    if fault == keyed.NAME:
        return kind in keyed.KINDS
    return fault in SEVERAL[kind] if kind in SEVERAL else not any(fault in blows for blows in SEVERAL.values())


class Chaos:
    """servers: kind → URL; several: kind → all servers behind such a URL; folder: of the runs."""

    def __init__(
        self, servers: Mapping[str, str], folder: Path, several: Mapping[str, replaced_masters.Several]
    ) -> None:
        self.servers, self.folder, self._several = servers, folder, several
        self._spark: SparkSession | None = None

    def run(self, fault: str, kind: str, seed: int, sink: str) -> Verdict:
        """One fault on one server, under queries with this sink."""
        folder = self.folder_of(fault, kind, seed, sink)
        where = {kind: self.servers[kind]}
        if kind in SEVERAL:
            self._several[kind].healthy()
        with client_of(self.servers[kind]) as client:
            client.flushall()
        if fault == keyed.NAME:
            cluster = self._several.get(kind)
            assert cluster is None or isinstance(cluster, RedisCluster)
            judged = keyed.run(folder, self.servers[kind], seed, cluster=cluster)
            return Verdict(wrong=judged.faults(), chosen=str(judged))
        if fault.startswith(DRIVER):
            killed = killed_driver.run(folder, where, seed, [fault.removeprefix(DRIVER)], sink)
            return Verdict.of(killed[f"{fault.removeprefix(DRIVER)}, {kind}"].report)
        if fault.startswith(STOPPED):
            stopped = stopped_driver.run(folder, where, seed, [fault.removeprefix(STOPPED)], sink)
            return Verdict.of(stopped[f"{fault.removeprefix(STOPPED)}, {kind}"].report)
        if fault.startswith(EXECUTOR):
            failed = failed_tasks.run_on_executors(folder, where, seed, [fault.removeprefix(EXECUTOR)], sink)
            one = failed[f"{fault.removeprefix(EXECUTOR)}, {kind}"]
            return Verdict.of(one.report, [] if one.struck else ["the fault has not happened"])
        scene = Scene(self._session(), folder, kind, self.servers[kind], "s", random.Random(seed), sink)
        with contextlib.closing(scene):
            if kind in SEVERAL:
                outcome = replaced_masters.struck(scene, self._several[kind], SEVERAL[kind][fault])
            else:
                outcome = SCENES[fault](scene)
        return Verdict.of(outcome.report, outcome.wrong, outcome.chosen)

    def folder_of(self, fault: str, kind: str, seed: int, sink: str) -> Path:
        """Where everything about a run is."""
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
    """Run faults until the time is up; 1 where anything was wrong."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is stopped on the way out
    parser = argparse.ArgumentParser(prog="scripts/chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, metavar="N", help="for how long (default 5)")
    parser.add_argument("--runs", type=int, metavar="N", help="this many runs, however long they take")
    parser.add_argument("--seed", type=int, metavar="S", help="repeat what this seed chose; the first run's own seed")
    parser.add_argument("--only", metavar="FAULT", help="only faults whose name holds this")
    parser.add_argument("--server", choices=KINDS, help="only on this one; default: engine and redis")
    parser.add_argument("--sink", choices=[*SINKS, "both"], help="write to files, or to a stream; default: by chance")
    parser.add_argument("--list", action="store_true", help="the names of all faults")
    chosen = parser.parse_args()
    if chosen.list:
        print("\n".join(FAULTS))
        return 0
    faults = [fault for fault in FAULTS if fault == chosen.only] or [f for f in FAULTS if (chosen.only or "") in f]
    if not faults:
        parser.error(f"no fault's name holds {chosen.only!r}: --list shows them")
    kinds = [chosen.server] if chosen.server else [*ONE]
    faults = [fault for fault in faults if any(has(kind, fault) for kind in kinds)]
    if not faults:
        parser.error(f"servers of kind {chosen.server or ' and '.join(ONE)} have no such fault: --server says which")
    if kinds != ["engine"] and redis_server_path() is None:
        print("chaos: no redis-server on this machine: the bundled engine only", file=sys.stderr)
        kinds = [kind for kind in kinds if kind == "engine"]
    if not kinds:
        return 1
    seed = random.SystemRandom().randrange(1_000_000) if chosen.seed is None else chosen.seed
    console = Console(emoji=False, highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 110)
    console.print(f"seed {seed}")  # the last line says it again, below a table that scrolls
    sinks: list[str | None] = [*SINKS] if chosen.sink == "both" else [chosen.sink]
    return _run_all(faults, kinds, sinks, seed, chosen.minutes, chosen.runs, console)


def _run_all(
    faults: list[str],
    kinds: list[str],
    sinks: list[str | None],
    seed: int,
    minutes: float,
    runs: int | None,
    console: Console,
) -> int:
    """sinks: one of them for a run that its seed chooses is None."""
    began, choices = time.monotonic(), random.Random(seed)
    tally = Tally(faults)
    waiting: list[tuple[str, str, str | None]] = []
    with contextlib.ExitStack() as stack:
        several = {kind: stack.enter_context(replaced_masters.running(kind)) for kind in kinds if kind in SEVERAL}
        servers = {kind: servers.url for kind, servers in several.items()} | {
            kind: stack.enter_context(running_engine() if kind == "engine" else running_redis()).url
            for kind in kinds
            if kind in ONE
        }
        folder = Path(tempfile.mkdtemp(prefix="rstream-chaos-"))
        chaos = Chaos(servers, folder, several)
        stack.callback(chaos.close)
        number = 0
        try:
            while number < runs if runs is not None else time.monotonic() - began < 60 * minutes:
                if not waiting:  # every fault has its turn before any has a second one
                    waiting = [(f, kind, sink) for f in faults for kind in kinds if has(kind, f) for sink in sinks]
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


def sink_of(fault: str, asked: str | None, seed: int) -> str:
    """The sink of a run: what was asked for, or by chance."""
    if fault in INTO_A_STREAM:
        return "stream"
    return asked or random.Random(f"sink {seed}").choice(SINKS)


def _run_one(chaos: Chaos, fault: str, kind: str, seed: int, sink: str, tally: Tally, console: Console) -> None:
    began = time.monotonic()
    try:
        verdict = chaos.run(fault, kind, seed, sink)
    except Exception as error:  # noqa: BLE001 - whatever it is, the other faults go on and the table says so
        traceback.print_exc()
        verdict = Verdict(failed=f"{type(error).__name__}: {error}")
    tally.add(fault, verdict)
    shown = "ok" if not verdict else f"[red]WRONG[/] {verdict}"
    console.print(f"{fault} on {kind}, {sink}, seed {seed}: {shown} ({time.monotonic() - began:.1f} s)")
    if verdict:
        console.print(
            f"  again: scripts/chaos --only '{fault}' --server {kind} --sink {sink} --seed {seed} --runs 1; "
            f"see {chaos.folder_of(fault, kind, seed, sink)}"
        )
    else:
        shutil.rmtree(chaos.folder_of(fault, kind, seed, sink), ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
