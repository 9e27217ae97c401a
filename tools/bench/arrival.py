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
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import redis
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

from spark_streams.jobs.command import program
from spark_streams.jobs.job import Job
from tools.bench.row import Row
from tools.bench.servers import Running, adding, producing, running
from tools.bench.spark import PATIENCE, session, source, started
from tools.waiting import until

STREAM = "arrivals"
COLUMNS = {"t": "BIGINT", "carrier": "STRING", "delay": "DOUBLE"}
SCHEMA = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
_EVERY = 0.01  # seconds between two looks at a table, and between two additions
_FILE = 0.1  # seconds between two files of the peer
_WARM_UP, _MEASURED = 5.0, 10.0  # seconds, and for each as many as an interval has
_LATEST = 5.0  # seconds that the last row may take
_numbers = itertools.count()


@dataclass(frozen=True)
class Case:
    """What is written, and how often."""

    table: str
    rate: int  # entries per second
    interval: int  # seconds between two triggers

    def __str__(self) -> str:
        return f"{self.table}, {self.rate:,}/s, trigger {self.interval} s"


# Those of the table in docs/internals/performance.md.
CASES = (
    Case("parquet", 20_000, 1),
    Case("deltalake", 20_000, 1),
    Case("deltalake", 100_000, 1),
    Case("deltalake", 20_000, 0),
    Case("deltalake", 20_000, 10),
    Case("pyiceberg", 20_000, 1),
)


# -- tables ------------------------------------------------------------------------------------------------------------


class Table:
    """A table below a folder: here a folder of Parquet files. A file can be read once it has its name."""

    name = "parquet"  # its key in TABLES

    def __init__(self, folder: Path) -> None:
        """Set up the table; the first batch creates it."""
        self.path = folder / "table"
        self.settings: dict[str, Any] = {"format": self.name, "path": str(self.path)}  # [table] of the job

    def append(self, rows: DataFrame, number: int) -> None:
        """Write a micro-batch, as the documentation of the format says."""
        rows.write.mode("append").parquet(str(self.path))

    def commits(self) -> Iterator[tuple[Path, list[Path]]]:
        """Yield each commit that is there, and its data files."""
        # os.walk passes over folders that the writer removes meanwhile.
        for place, folders, names in os.walk(self.path):
            folders[:] = [name for name in folders if not name.startswith(("_", "."))]
            for name in names:
                if name.startswith("part-") and name.endswith(".parquet"):
                    yield Path(place, name), [Path(place, name)]


class DeltaTable(Table):
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
        from pyiceberg.catalog import load_catalog

        table = rows.toArrow()
        catalog = load_catalog("lake", **self._options)
        catalog.create_namespace_if_not_exists("shop")
        catalog.create_table_if_not_exists("shop.rows", table.schema).append(table)

    def commits(self) -> Iterator[tuple[Path, list[Path]]]:
        # A snapshot's files are those that are there: this program alone writes the table, and removes nothing.
        files = list((self.path / "data").rglob("*.parquet"))
        for commit in sorted((self.path / "metadata").glob("*.metadata.json"))[-1:]:
            yield commit, files


TABLES: Mapping[str, type[Table]] = {one.name: one for one in (Table, DeltaTable, IcebergTable)}


@contextlib.contextmanager
def watching(table: Table) -> Iterator[dict[Path, float]]:
    """Look at a table a hundred times a second. Yield file → the moment at which it could be read (seconds)."""
    known: set[Path] = set()
    seen: dict[Path, float] = {}
    stopped = threading.Event()

    def watch() -> None:
        while not stopped.wait(_EVERY):
            for commit, files in list(table.commits()):
                if commit not in known:
                    known.add(commit)
                    now = time.time()
                    for file in files:
                        seen.setdefault(file, now)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        stopped.set()
        thread.join()


def waited(seen: Mapping[Path, float], begin: float, end: float) -> np.ndarray:
    """Return the milliseconds that rows waited which were made from `begin` to `end` (seconds)."""
    rows = [np.empty(0)]
    for file, moment in seen.items():
        made = np.asarray(pq.ParquetFile(file).read(["t"]).column("t"), dtype=np.float64) / 1e6
        rows.append((moment - made[(made >= begin) & (made < end)]) * 1000)
    return np.concatenate(rows)


# -- programs that write a table ---------------------------------------------------------------------------------------


def _entries(server: Running, case: Case) -> AbstractContextManager[None]:
    return adding(server.port, STREAM, case.rate, _EVERY, "carrier", "UA", "delay", "12.5")


class _Job(Job):
    """The job in the session of the other programs."""

    def session(self) -> SparkSession:
        return session()


@contextlib.contextmanager
def job(server: Running, table: Table, case: Case, folder: Path) -> Iterator[None]:
    """The job `etl`."""
    settings = {
        "url": server.url,
        "source": {"streams": STREAM, "group": "g", "startingOffsets": "earliest"},
        "columns": COLUMNS,
        "table": table.settings,
        "dead_letters": {"stream": "dead"},
        "job": {"checkpoint": str(folder / "checkpoint"), "trigger": f"{max(case.interval * 1_000, 1)}ms"},
    }
    running = _Job("etl", settings, Console(quiet=True))
    running.stop.listen()
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        ended = thread.submit(program("etl").body, running)
        try:
            with _entries(server, case):
                yield
        finally:
            signal.raise_signal(signal.SIGTERM)  # the job finishes its batch
            ended.result()
            running.stop.restore()


@contextlib.contextmanager
def each_batch(server: Running, table: Table, case: Case, folder: Path) -> Iterator[None]:
    """A query of the source with foreachBatch."""
    with _query(source(server.url, SCHEMA, streams=STREAM), table, case, folder), _entries(server, case):
        yield


@contextlib.contextmanager
def files(server: Running, table: Table, case: Case, folder: Path) -> Iterator[None]:
    """The peer: Spark's file source with the same foreachBatch."""
    (made := folder / "in").mkdir()

    def add(stamp: int, count: int) -> None:
        line = json.dumps({"t": stamp, "carrier": "UA", "delay": 12.5}) + "\n"
        draft = made / f".{stamp}"
        draft.write_text(line * count)
        draft.rename(made / f"{stamp}.json")

    frame = session().readStream.schema(SCHEMA).json(str(made))
    with _query(frame, table, case, folder), producing(case.rate, _FILE, add):
        yield


def _query(frame: DataFrame, table: Table, case: Case, folder: Path) -> AbstractContextManager[object]:
    writer = frame.writeStream.foreachBatch(table.append).option("checkpointLocation", str(folder / "checkpoint"))
    return started(writer.trigger(processingTime=f"{case.interval} seconds").start())


@contextlib.contextmanager
def redis_py(server: Running, table: Table, case: Case, _folder: Path) -> Iterator[None]:
    """The other peer: a process with a consumer group in redis-py, which appends to a Delta table and acknowledges."""
    arguments = server.port, table.path, case.interval
    consumer = multiprocessing.get_context("spawn").Process(target=_consume, args=arguments)
    consumer.start()
    try:
        with _entries(server, case):
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
            made = pa.table(dict(zip(COLUMNS, map(pa.array, columns), strict=True)))
            write_deltalake(path, made, mode="append")
            for first in range(0, len(ids), 10_000):
                client.xack(STREAM, "g", *ids[first : first + 10_000])


Writer = Callable[[Running, Table, Case, Path], AbstractContextManager[None]]
WRITERS: Mapping[str, Writer] = {"etl": job, "foreachBatch": each_batch, "files": files, "redis-py": redis_py}
_PEERS = {
    "files": "Spark's file source with foreachBatch, of files of JSON every 0.1 s",
    "redis-py": "a consumer group in redis-py that appends each second",
}


# -- rows --------------------------------------------------------------------------------------------------------------


def measure(server: Running, home: Path, writer: str, case: Case) -> dict[str, float]:
    """Return percentiles of the milliseconds from an entry to its row."""
    server.call("FLUSHALL")
    folder = home / str(next(_numbers))
    folder.mkdir()
    table = TABLES[case.table](folder)
    measured = _MEASURED + case.interval
    with watching(table) as seen, WRITERS[writer](server, table, case, folder):
        until(lambda: seen, "the first row did not arrive", PATIENCE)
        begin = time.time() + _WARM_UP + case.interval
        # The last rows that count have their time to arrive.
        time.sleep(_WARM_UP + measured + 2 * case.interval + _LATEST)
    milliseconds = waited(seen, begin, begin + measured)
    if not len(milliseconds):
        raise RuntimeError(f"{writer}, {case}: no row arrived")
    return {f"p{one}": float(np.percentile(milliseconds, one)) for one in (50, 99)}


def arrival_rows(stack: contextlib.ExitStack) -> list[Row]:
    """Return the rows of the group: each program in each case, beside its peers."""
    server = stack.enter_context(running("redis-server"))
    home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    rows = []
    for case in CASES:
        runs = {writer: functools.partial(measure, server, home, writer, case) for writer in WRITERS}
        pairs = [("etl", "files"), ("foreachBatch", "files")]
        if case.table == "deltalake" and case.interval == 1:
            pairs.append(("etl", "redis-py"))
        rows += [
            Row("P31", f"{writer} into {case}: {name}", f"{_MEASURED + case.interval:g} s; peer: {_PEERS[peer]}", "ms",
                None, runs[writer], runs[peer], peer, at_least=False, name=name)
            for name in ("p50", "p99")
            for writer, peer in pairs
        ]  # fmt: skip
    return rows
