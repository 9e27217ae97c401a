"""P31: from XADD to a row that can be read, in a folder of Parquet, a Delta table and an Iceberg table. (From stream to
stream: P22.)

Three programs write the same table: the job `etl`; a query of the same source with `foreachBatch`; and, as the peer, a
query of Spark's file source, for which the producer writes files of JSON ten times a second. The second peer is what
people write without Spark: a consumer group in redis-py that appends to a Delta table each second.

Each entry has the microsecond at which it was made. A row can be read when the table's commit names its file.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import itertools
import json
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import redis
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

from spark_streams.jobs.command import program
from spark_streams.jobs.job import ACCESS_SHAPE, Job
from spark_streams.jobs.job_config import load
from tools.bench.client import request
from tools.bench.row import Row
from tools.bench.servers import Running, running
from tools.bench.spark import session
from tools.waiting import until

_EVERY = 0.01  # seconds between two looks at a table


class Table(ABC):
    """A table below a folder. `name` is its key in TABLES; `settings` are the keys of [table] of the job."""

    name: str
    settings: Mapping[str, Any]

    def __init__(self, folder: Path) -> None:
        """Set up the table; the first batch creates it."""
        self.path = folder / "table"
        self.settings = {"format": self.name, "path": str(self.path)}

    @abstractmethod
    def append(self, rows: DataFrame, number: int) -> None:
        """Write a micro-batch, as the documentation of the format says."""

    @abstractmethod
    def commits(self) -> Iterator[tuple[Path, list[Path]]]:
        """Yield each commit that is there, and its data files."""


class ParquetFolder(Table):
    """A folder of Parquet files. A file can be read once it has its name."""

    name = "parquet"

    def append(self, rows: DataFrame, number: int) -> None:
        rows.write.mode("append").parquet(str(self.path))

    def commits(self) -> Iterator[tuple[Path, list[Path]]]:
        # os.walk passes over folders that the writer removes meanwhile.
        for place, folders, names in os.walk(self.path):
            folders[:] = [name for name in folders if not name.startswith(("_", "."))]
            for name in names:
                if name.startswith("part-") and name.endswith(".parquet"):
                    yield Path(place, name), [Path(place, name)]


class DeltaTableFolder(Table):
    """A Delta table. Its log names the files of each commit."""

    name = "deltalake"

    def append(self, rows: DataFrame, number: int) -> None:
        from deltalake import write_deltalake

        write_deltalake(self.path, rows.toArrow(), mode="append")

    def commits(self) -> Iterator[tuple[Path, list[Path]]]:
        for commit in (self.path / "_delta_log").glob("*.json"):
            added = [json.loads(line).get("add") for line in commit.read_text().splitlines()]
            yield commit, [self.path / one["path"] for one in added if one]


class IcebergTable(Table):
    """An Iceberg table in a catalog of SQLite. Each snapshot has a new file of metadata."""

    name = "pyiceberg"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._options = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
        self.path = folder / "shop" / "rows"
        self.settings = {"format": "pyiceberg", "catalog": "lake", "name": "shop.rows", "options": self._options}

    def append(self, rows: DataFrame, number: int) -> None:
        table = rows.toArrow()
        catalog = self._catalog()
        catalog.create_namespace_if_not_exists("shop")
        catalog.create_table_if_not_exists("shop.rows", table.schema).append(table)

    def commits(self) -> Iterator[tuple[Path, list[Path]]]:
        # A snapshot's files are those that are there: this program alone writes the table, and removes nothing.
        files = list((self.path / "data").rglob("*.parquet"))
        for commit in sorted((self.path / "metadata").glob("*.metadata.json"))[-1:]:
            yield commit, files

    def _catalog(self) -> Any:
        from pyiceberg.catalog import load_catalog

        return load_catalog("lake", **self._options)


TABLES: Mapping[str, type[Table]] = {one.name: one for one in (ParquetFolder, DeltaTableFolder, IcebergTable)}


class Watch:
    """Looks at a table a hundred times a second. seen: file → the moment at which it could be read (seconds)."""

    def __init__(self, table: Table) -> None:
        """Begin."""
        self._table = table
        self._known: set[Path] = set()
        self.seen: dict[Path, float] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(_EVERY):
            for commit, files in list(self._table.commits()):
                if commit in self._known:
                    continue
                self._known.add(commit)
                now = time.time()
                for file in files:
                    self.seen.setdefault(file, now)


def waited(seen: Mapping[Path, float], begin: float, end: float) -> tuple[np.ndarray, int]:
    """Return the milliseconds that rows waited which were made from `begin` to `end` (seconds), and the number of files
    that came within this time."""
    rows = [np.empty(0)]
    for file, moment in seen.items():
        made = np.asarray(pq.ParquetFile(file).read(["t"]).column("t"), dtype=np.float64) / 1e6
        rows.append((moment - made[(made >= begin) & (made < end)]) * 1000)
    return np.concatenate(rows), sum(begin <= moment < end for moment in seen.values())


SCHEMA = "t BIGINT, carrier STRING, delay DOUBLE"
STREAM = "arrivals"
_TICK = 0.01  # seconds between two additions
_FILE = 0.1  # seconds between two files of the peer
_COLUMNS = {"t": "BIGINT", "carrier": "STRING", "delay": "DOUBLE"}


class Producer(threading.Thread):
    """Makes rows at a rate until `ended` is set. `add` receives the microsecond and the number of rows."""

    def __init__(self, rate: int, every: float, add: Callable[[int, int], None]) -> None:
        """Begin. every: seconds between two calls of `add`."""
        super().__init__(daemon=True)
        self._rate, self._every, self._add = rate, every, add
        self.ended = threading.Event()
        self.start()

    def run(self) -> None:
        """Make rows."""
        begun, made = time.perf_counter(), 0
        while not self.ended.wait(self._every):
            due = int((time.perf_counter() - begun) * self._rate) - made
            self._add(int(time.time() * 1e6), due)
            made += due


@contextlib.contextmanager
def _entries(server: Running, rate: int) -> Iterator[None]:
    """Add entries to the stream at this rate, within the block."""
    client = server.client()

    def add(stamp: int, count: int) -> None:
        one = request("XADD", STREAM, "*", "t", stamp, "carrier", "UA", "delay", "12.5")
        client.socket.sendall(one * count)
        client.take(count)

    with _producing(Producer(rate, _TICK, add)):
        yield
    client.close()


@contextlib.contextmanager
def _files(folder: Path, rate: int) -> Iterator[None]:
    """Write files of JSON at this rate, within the block."""

    def add(stamp: int, count: int) -> None:
        line = json.dumps({"t": stamp, "carrier": "UA", "delay": 12.5}) + "\n"
        draft = folder / f".{stamp}"
        draft.write_text(line * count)
        draft.rename(folder / f"{stamp}.json")

    with _producing(Producer(rate, _FILE, add)):
        yield


@contextlib.contextmanager
def _producing(producer: Producer) -> Iterator[None]:
    try:
        yield
    finally:
        producer.ended.set()
        producer.join()


class _Job(Job):
    """The job in the session of the other programs."""

    def session(self) -> SparkSession:
        return session()


@contextlib.contextmanager
def job(server: Running, table: Table, rate: int, interval: int, folder: Path) -> Iterator[None]:
    """The job `etl`."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "url": f"redis://127.0.0.1:{server.port}/0",
        "source": {"streams": STREAM, "group": "g", "startingOffsets": "earliest"},
        "columns": _COLUMNS,
        "table": dict(table.settings),
        "dead_letters": {"stream": "dead"},
        "job": {"checkpoint": str(folder / "checkpoint"), "trigger": f"{interval} seconds"},
    }
    config = folder / "etl.toml"
    config.write_text(toml(settings))
    etl = program("etl")
    running = _Job("etl", load(str(config), (), {**ACCESS_SHAPE, **etl.shape}, etl.required), Console(quiet=True))
    running.stop.listen()
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        ended = thread.submit(etl.body, running)
        try:
            with _entries(server, rate):
                yield
        finally:
            signal.raise_signal(signal.SIGTERM)  # the job finishes its batch
            ended.result()
            running.stop.restore()


@contextlib.contextmanager
def each_batch(server: Running, table: Table, rate: int, interval: int, folder: Path) -> Iterator[None]:
    """A query of the source with foreachBatch."""
    options = {"url": f"redis://127.0.0.1:{server.port}/0", "streams": STREAM, "group": "g"}
    options["startingOffsets"] = "earliest"
    frame = session().readStream.format("rstream").schema(SCHEMA).options(**options).load()
    with _query(frame, table, interval, folder), _entries(server, rate):
        yield


@contextlib.contextmanager
def files(server: Running, table: Table, rate: int, interval: int, folder: Path) -> Iterator[None]:
    """The peer: Spark's file source with the same foreachBatch."""
    (folder / "in").mkdir(parents=True)
    frame = session().readStream.schema(SCHEMA).json(str(folder / "in"))
    with _query(frame, table, interval, folder), _files(folder / "in", rate):
        yield


@contextlib.contextmanager
def _query(frame: DataFrame, table: Table, interval: int, folder: Path) -> Iterator[None]:
    writer = frame.writeStream.foreachBatch(table.append).option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(processingTime=f"{interval} seconds").start()
    try:
        yield
    finally:
        query.stop()


@contextlib.contextmanager
def redis_py(server: Running, table: Table, rate: int, interval: int, folder: Path) -> Iterator[None]:
    """The other peer: a process with a consumer group in redis-py, which appends to a Delta table and acknowledges."""
    consumer = multiprocessing.get_context("spawn").Process(target=_consume, args=(server.port, table.path, interval))
    consumer.start()
    try:
        with _entries(server, rate):
            yield
    finally:
        consumer.kill()
        consumer.join()


def _consume(port: int, path: Path, interval: int) -> None:
    """Append what has arrived each `interval` seconds, for ever."""
    import pyarrow as pa
    from deltalake import write_deltalake

    with redis.Redis(port=port) as client:
        client.xgroup_create(STREAM, "g", id="0", mkstream=True)
        while True:
            begun = time.monotonic()
            rows, ids = [], []
            while time.monotonic() - begun < interval:
                for _, entries in client.xreadgroup("g", "c", {STREAM: ">"}, count=10_000, block=interval * 100):
                    for entry_id, fields in entries:
                        ids.append(entry_id)
                        rows.append((int(fields[b"t"]), fields[b"carrier"].decode(), float(fields[b"delay"])))
            if not rows:
                continue
            columns = zip(*rows, strict=True)
            made = pa.table(dict(zip(_COLUMNS, map(pa.array, columns), strict=True)))
            write_deltalake(path, made, mode="append")
            for first in range(0, len(ids), 10_000):
                client.xack(STREAM, "g", *ids[first : first + 10_000])


Writer = Callable[[Running, Table, int, int, Path], contextlib.AbstractContextManager[None]]
WRITERS: Mapping[str, Writer] = {"etl": job, "foreachBatch": each_batch, "files": files, "redis-py": redis_py}


def toml(settings: Mapping[str, object]) -> str:
    """Return a configuration as TOML: keys with texts first, then its tables."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items() if not isinstance(value, dict)]
    for key, value in settings.items():
        if isinstance(value, dict):
            lines += [f"\n[{key}]", *(f"{json.dumps(name)} = {_value(one)}" for name, one in value.items())]
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {json.dumps(one)}" for name, one in value.items()) + "}"
    return json.dumps(value)


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
