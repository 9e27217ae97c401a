"""A task whose first attempt fails: it raises, its process or executor is killed, or a speculative task is faster."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from spark_streams.operations.verify.history import History, Report, check_history
from tools.chaos.job import Job
from tools.chaos.producer import Producer
from tools.chaos.query import SINKS, Fault, Query, into_a_stream
from tools.chaos.scene import Outcome, Scene, gather

# name: (kind of fault, stage of the task)
FAULTS = {
    "raises while reading": ("raise", "reading"),
    "raises while writing": ("raise", "writing"),
    "Python killed while reading": ("kill", "reading"),
    "Python killed while writing": ("kill", "writing"),
}
# These need executors in separate processes.
EXECUTOR_FAULTS = {
    "executor killed": ("hold", "reading"),
    "speculative twin": ("wait", "reading"),
}


@dataclass
class Failed:
    """Case of one query. struck: whether its fault has happened."""

    query: Query
    producer: Producer
    history: History = field(default_factory=History)
    report: Report = field(default_factory=Report)
    struck: bool = False


def case(folder: Path, fault: str, kind: str, url: str, random_: random.Random, sink: str) -> Failed:
    """Return a query with this fault in one of its batches."""
    kind_of_fault, stage = (FAULTS | EXECUTOR_FAULTS)[fault]
    name = f"{fault} {kind}".replace(" ", "-")
    producer = Producer(url)
    producer.add(name, random_.randint(80, 120))
    options = {
        "streams": name,
        "group": "g",
        "maxEntriesPerTrigger": str(random_.randint(60, 100)),
        "entriesPerPartition": str(random_.randint(20, 50)),
    }
    fault_of_query = Fault(kind_of_fault, 0, stage, rows=random_.randint(0, 20))
    query = Query(name, str(folder / name), url, options, trigger="now", fault=fault_of_query, ahead=1)
    return Failed(into_a_stream(query, random_) if sink == "stream" else query, producer)


def judge(failed: Failed) -> None:
    """Judge the case after the query has ended."""
    waits = failed.query.fault is not None and failed.query.fault.kind == "wait"
    failed.struck = (failed.query.path / ("twin" if waits else "struck")).exists()
    failed.history = gather(failed.query, failed.producer.added)
    failed.report = check_history(failed.history)


def scene_of(fault: str) -> Callable[[Scene], Outcome]:
    """Return a scene that runs one of FAULTS."""

    def run(scene: Scene) -> Outcome:
        failed = case(scene.folder, fault, scene.kind, scene.url, scene.random, scene.sink)
        scene.producer.added = failed.producer.added
        error, _ = scene.run(failed.query, failed.query.trigger)
        judge(failed)
        outcome = Outcome(failed.history, failed.report)
        outcome.expect("error", error, "")
        outcome.expect("fault has happened", failed.struck, True)
        outcome.expect("attempts", {row.attempt for row in failed.history.kept()}, {0, 1})
        return outcome

    return run


def run_on_executors(
    folder: Path,
    servers: Mapping[str, str],
    seed: int,
    faults: Iterable[str] = tuple(EXECUTOR_FAULTS),
    sink: str | None = None,
) -> dict[str, Failed]:
    """Run the faults that need executors, in one small cluster. Return the cases by `fault, kind`.

    sink: None: selected by the seed.
    """
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
    queries = [failed.query for failed in cases.values()]
    with Job(folder, queries, "local-cluster[1,1,512]", conf, in_turn=True, second_host="127.0.0.2") as job:
        for failed in cases.values():
            fault = failed.query.fault
            if fault is not None and fault.kind == "hold":
                job.wait_for(failed.query.held, f"the kill point of {failed.query.name}")
                _kill_executor_of(job, int(failed.query.sign("held").read_text()))
        job.finish()
    for failed in cases.values():
        judge(failed)
    return cases


def _kill_executor_of(job: Job, pid: int) -> None:
    """SIGKILL the executor that started this Python worker."""
    executors = {pid for pid, command in job.processes() if "CoarseGrainedExecutorBackend" in command}
    while pid not in executors:
        assert pid > 1, "the worker has no executor among its parents"
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
