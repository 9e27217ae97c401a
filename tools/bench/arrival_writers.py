"""Programs that write entries, or files, into a table; and who makes them.

Those with Spark share one session: a new JVM is several times slower for a minute.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import redis
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

from spark_streams.jobs.command import program
from spark_streams.jobs.job import ACCESS_SHAPE, Job
from spark_streams.jobs.settings.job_config import load
from tools.bench.arrival_tables import Table
from tools.bench.client import request
from tools.bench.servers import Running
from tools.bench.spark import session

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
