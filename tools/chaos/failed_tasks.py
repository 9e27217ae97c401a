"""A task that fails in its first attempt: it raises, its Python process or its executor is killed, a twin is faster."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tools.chaos.checker import Report, check
from tools.chaos.gather import gather
from tools.chaos.history import History
from tools.chaos.process import Job
from tools.chaos.producer import Producer
from tools.chaos.query import SINKS, Fault, Query, into_a_stream
from tools.chaos.scene import Outcome, Scene

# name: (what happens, in which stage of the task)
FAULTS = {
    "raises while reading": ("raise", "reading"),
    "raises while writing": ("raise", "writing"),
    "Python killed while reading": ("kill", "reading"),
    "Python killed while writing": ("kill", "writing"),
}
# These want executors that are processes of their own.
EXECUTOR_FAULTS = {
    "executor killed": ("hold", "reading"),
    "speculative twin": ("wait", "reading"),
}


@dataclass
class Failed:
    """One query's case; struck: whether its fault has happened."""

    query: Query
    producer: Producer
    history: History = field(default_factory=History)
    report: Report = field(default_factory=Report)
    struck: bool = False


def case(folder: Path, fault: str, kind: str, url: str, random_: random.Random, sink: str) -> Failed:
    """A query that is about to meet the fault in one of its batches."""
    happens, stage = (FAULTS | EXECUTOR_FAULTS)[fault]
    name = f"{fault} {kind}".replace(" ", "-")
    producer = Producer(url)
    producer.add(name, random_.randint(80, 120))
    options = {
        "streams": name,
        "group": "g",
        "maxEntriesPerTrigger": str(random_.randint(60, 100)),
        "entriesPerPartition": str(random_.randint(20, 50)),
    }
    meets = Fault(happens, 0, stage, rows=random_.randint(0, 20))
    query = Query(name, str(folder / name), url, options, trigger="now", fault=meets, ahead=1)
    return Failed(into_a_stream(query, random_) if sink == "stream" else query, producer)


def judge(failed: Failed) -> None:
    """After the query has ended."""
    waits = failed.query.fault is not None and failed.query.fault.kind == "wait"
    failed.struck = (failed.query.path / ("twin" if waits else "struck")).exists()
    failed.history = gather(failed.query, failed.producer.added)
    failed.report = check(failed.history)


def scene_of(fault: str) -> Callable[[Scene], Outcome]:
    """One of FAULTS as a scene."""

    def scene(there: Scene) -> Outcome:
        failed = case(there.folder, fault, there.kind, there.url, there.random, there.sink)
        there.producer.added = failed.producer.added
        error, _ = there.run(failed.query, failed.query.trigger)
        judge(failed)
        outcome = Outcome(failed.history, failed.report)
        outcome.expect("error", error, "")
        outcome.expect("fault has happened", failed.struck, True)
        outcome.expect("attempts", {row.attempt for row in failed.history.kept()}, {0, 1})
        return outcome

    return scene


def run_on_executors(
    folder: Path,
    servers: Mapping[str, str],
    seed: int,
    faults: Iterable[str] = tuple(EXECUTOR_FAULTS),
    sink: str | None = None,
) -> dict[str, Failed]:
    """The faults that want executors, in one small cluster; sink: None: by chance; the result's keys are
    `fault, kind`."""
    random_ = random.Random(seed)
    cases = {
        f"{fault}, {kind}": case(folder, fault, kind, servers[kind], random_, sink or random_.choice(SINKS))
        for fault in faults
        for kind in servers
    }
    conf = {
        "spark.executor.memory": "512m",
        "spark.speculation": "true",
        "spark.speculation.interval": "50ms",
        "spark.speculation.quantile": "0.1",
        "spark.speculation.multiplier": "1.5",
    }
    queries = [one.query for one in cases.values()]
    with Job(folder, queries, "local-cluster[1,1,512]", conf, in_turn=True, second_host="127.0.0.2") as job:
        for one in cases.values():
            fault = one.query.fault
            if fault is not None and fault.kind == "hold":
                job.wait_for(one.query.held, f"the kill point of {one.query.name}")
                _kill_executor_of(job, int(one.query.sign("held").read_text()))
        job.finish()
    for one in cases.values():
        judge(one)
    return cases


def _kill_executor_of(job: Job, pid: int) -> None:
    """SIGKILL the executor that has started this Python worker."""
    executors = {pid for pid, command in job.processes() if "CoarseGrainedExecutorBackend" in command}
    while pid not in executors:
        assert pid > 1, "the worker has no executor above it"
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
