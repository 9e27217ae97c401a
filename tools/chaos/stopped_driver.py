"""The old driver is stopped (SIGSTOP), a new one takes over and continues, and then the old one continues, too.

The old driver may continue with a task that writes, with a reserved batch or with an acknowledgement. No row is
duplicated or skipped, and the old driver takes no entry from the new one.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from spark_streams.operations.verify.history import History, Report, check_history
from spark_streams.operations.verify.running_query import PATIENCE
from tools.chaos.job import Job
from tools.chaos.producer import Producer
from tools.chaos.query import SINKS, Fault, Query, into_a_stream
from tools.chaos.scene import gather

POINTS = ("reserved", "logged", "reading", "writing", "closing", "written", "committed", "acknowledging")
LATER = 2  # batches of the new driver before the old one continues


@dataclass
class Stopped:
    """Case of one query. end_error: error that ended the old driver's query."""

    query: Query
    producer: Producer
    end_error: str = ""
    history: History = field(default_factory=History)
    report: Report = field(default_factory=Report)

    @property
    def stream(self) -> str:
        """Input stream."""
        return self.query.options["streams"]


def run(
    folder: Path, servers: Mapping[str, str], seed: int, points: Iterable[str] = POINTS, sink: str | None = None
) -> dict[str, Stopped]:
    """Run one round. Return the cases by `point, kind`. servers: kind → URL; sink: None: selected by the seed."""
    random_ = random.Random(seed)
    cases = {
        f"{point}, {kind}": _case(folder, point, kind, url, random_, sink or random_.choice(SINKS))
        for point in points
        for kind, url in servers.items()
    }
    old = [case.query for case in cases.values()]
    new = [replace(query, fault=None, driver="new-") for query in old]
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(Job(folder, old, f"local[{4 + len(old)}]"))
        for case in cases.values():
            first.wait_for(case.query.held, f"the kill point of {case.query.name}")
        _signal(first, signal.SIGSTOP)
        stack.callback(_signal, first, signal.SIGCONT)
        for case in cases.values():
            _wait_for_the_lease(case)
            case.producer.add(case.stream, random_.randint(60, 90))
        second = stack.enter_context(Job(folder, new))
        for case in cases.values():
            second.wait_for(partial(_is_past, case, LATER), f"later batches of {case.query.name}")
        for case in cases.values():
            case.query.sign("go").touch()
        _signal(first, signal.SIGCONT)
        first.wait_for(lambda: all(query.ended() is not None for query in old), "the end of the old driver", old)
        for case in cases.values():
            case.producer.add(case.stream, 20)
        for case in cases.values():
            second.wait_for(partial(_is_settled, case), f"{case.query.name} to be settled")
            replace(case.query, driver="new-").sign("stop").touch()
        second.finish()
    for case in cases.values():
        case.end_error = case.query.ended() or ""
        case.history = gather(case.query, case.producer.added)
        case.report = check_history(case.history)
    return cases


def _case(folder: Path, point: str, kind: str, url: str, random_: random.Random, sink: str) -> Stopped:
    name = f"stopped {point} {kind}".replace(" ", "-")
    producer = Producer(url)
    producer.add(name, random_.randint(100, 140))
    options = {"streams": name, "group": "g", "maxEntriesPerTrigger": "30", "entriesPerPartition": "10"}
    fault = Fault("pause", random_.randint(0, 1), point, rows=random_.choice([0, 0, 5]))
    query = Query(name, str(folder / name), url, options, fault=fault, ahead=random_.choice([1, 50_000]))
    return Stopped(into_a_stream(query, random_) if sink == "stream" else query, producer)


def _signal(job: Job, number: signal.Signals) -> None:
    """Send a signal to every process of the job."""
    for pid, _ in job.processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _wait_for_the_lease(case: Stopped) -> None:
    """Wait until the session of the old driver has expired. A stopped driver cannot renew it."""
    client, deadline = case.producer.client, time.monotonic() + PATIENCE
    leases = client.mget(list(client.scan_iter(f"rstream:lease:*{case.stream}*", count=1000)) or ["none"])
    sessions = [json.loads(lease)["session"] for lease in leases if lease is not None]
    while sessions and client.exists(*sessions):
        assert time.monotonic() < deadline, f"the lease of the stopped driver does not expire within {PATIENCE:g} s"
        time.sleep(0.1)


def _is_past(case: Stopped, batches: int) -> bool:
    assert case.query.fault is not None
    return case.query.committed() >= case.query.fault.batch + batches


def _is_settled(case: Stopped) -> bool:
    client = case.producer.client
    last = client.xinfo_stream(case.stream)["last-generated-id"]
    group = client.xinfo_groups(case.stream)[0]
    return bool(group["pending"] == 0 and group["last-delivered-id"] == last)
