"""P31: from XADD to a row that can be read, in a folder of Parquet, a Delta table and an Iceberg table. (From stream to
stream: P22.)

Three programs write the same table: the job `etl`; a query of the same source with `foreachBatch`; and, as the peer, a
query of Spark's file source, for which the producer writes files of JSON ten times a second. The second peer is what
people write without Spark: a consumer group in redis-py that appends to a Delta table each second.

Each entry has the microsecond at which it was made. A row can be read when the table's commit names its file.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tools.bench.arrival_tables import TABLES, Watch, waited
from tools.bench.arrival_writers import WRITERS
from tools.bench.row import Row
from tools.bench.servers import Running, running
from tools.waiting import until

_WARM_UP, _MEASURED = 5.0, 10.0  # seconds, and for each as many as an interval has
_PATIENCE, _LATEST = 120.0, 5.0  # seconds that the first row, and the last one, may take
RATES = (1_000, 20_000, 100_000)
INTERVALS = (0, 1, 10)  # seconds between two triggers
_PEERS = {
    "files": "Spark's file source with foreachBatch, of files of JSON every 0.1 s",
    "redis-py": "a consumer group in redis-py that appends each second",
}
_numbers = itertools.count()


@dataclass(frozen=True)
class Case:
    """What is written, and how often. rate: entries per second; interval: of the triggers, in seconds."""

    table: str
    rate: int
    interval: int

    def __str__(self) -> str:
        return f"{self.table}, {self.rate:,}/s, trigger {self.interval} s"

    @property
    def measured(self) -> float:
        """Seconds whose entries count."""
        return _MEASURED + self.interval


@dataclass(frozen=True)
class Figures:
    """Milliseconds from an entry to its row, and how many files the table got in a minute."""

    median: float
    p99: float
    files: float


class _Runs:
    """The last run of each program in each case: one run gives several rows of the table."""

    def __init__(self, server: Running, home: Path) -> None:
        self._server, self._home = server, home
        self._last: dict[tuple[str, Case], Figures] = {}

    def figure(self, writer: str, case: Case, name: str) -> float:
        """Return a figure. `median` starts a run; the others use the last one."""
        if name == "median":
            self._last[writer, case] = self._run(writer, case)
        return float(getattr(self._last[writer, case], name))

    def _run(self, writer: str, case: Case) -> Figures:
        client = self._server.client()
        client.call("FLUSHALL")
        client.close()
        folder = self._home / str(next(_numbers))
        table = TABLES[case.table](folder)
        watch = Watch(table)
        with WRITERS[writer](self._server, table, case.rate, case.interval, folder):
            until(lambda: watch.seen, "the first row did not arrive", within=_PATIENCE)
            begin = time.time() + _WARM_UP + case.interval
            # The last rows that count have their time to arrive.
            time.sleep(_WARM_UP + case.measured + 2 * case.interval + _LATEST)
        watch.stop()
        milliseconds, files = waited(watch.seen, begin, begin + case.measured)
        if not len(milliseconds):
            raise RuntimeError(f"{writer}, {case}: no row arrived")
        return Figures(
            float(np.percentile(milliseconds, 50)), float(np.percentile(milliseconds, 99)), files * 60 / case.measured
        )


def rows(stack: contextlib.ExitStack) -> list[Row]:
    """Return the rows of the group: each program in each case, beside its peers."""
    runs = _Runs(stack.enter_context(running("redis-server")), Path(stack.enter_context(tempfile.TemporaryDirectory())))
    cases = [Case(table, rate, 1) for table in TABLES for rate in RATES]
    cases += [Case("deltalake", RATES[1], interval) for interval in INTERVALS if interval != 1]
    return [row for case in cases for row in _rows(runs, case)]


def _rows(runs: _Runs, case: Case) -> Iterator[Row]:
    """Yield the rows of a case. The first one of a program runs it; those that share a function share its run."""
    pairs = [("etl", "files"), ("foreachBatch", "files")]
    if case.table == "deltalake" and case.interval == 1:
        pairs.append(("etl", "redis-py"))
    for name, title, unit in (("median", "p50", "ms"), ("p99", "p99", "ms"), ("files", "files a minute", "")):
        figures = {one: functools.partial(runs.figure, one, case, name) for one in WRITERS}
        for writer, peer in pairs:
            yield Row(
                "P31",
                f"{writer} into {case}: {title}",
                f"{case.measured:g} s; peer: {_PEERS[peer]}",
                unit,
                None,
                figures[writer],
                figures[peer],
                peer,
                at_least=False,
            )
