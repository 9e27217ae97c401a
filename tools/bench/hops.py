"""P22: time from XADD to the row at the sink, at a thousand entries per second.

The peer is a Python source that returns only the times at which its rows were due.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from tools.bench.client import request
from tools.bench.row import Row
from tools.bench.servers import Running, running
from tools.bench.spark import session

RATE = 1_000  # entries per second
WARM_UP, MEASURED = 6.0, 10.0  # seconds
_PATIENCE = 120.0  # seconds that the first row may take
_STAMP = re.compile(rb"\$1\r\nt\r\n\$16\r\n([0-9]{16})\r\n")


class ClockSource(DataSource):
    """format("clock"): a thousand rows per second. Each holds the microsecond at which it is due."""

    @classmethod
    def name(cls) -> str:
        return "clock"

    def schema(self) -> str:
        """One column."""
        return "t STRING"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _Clock()


class _Clock(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, Any]:
        return {"row": _row_of_now()}

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # Spark calls it without arguments
        return {"row": _row_of_now()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition((start["row"], end["row"]))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        start, end = partition.value
        step = 1_000_000 // RATE
        stamps = [f"{row * step:016d}" for row in range(start + 1, end + 1)]
        yield pa.RecordBatch.from_arrays([pa.array(stamps, pa.string())], names=["t"])

    def commit(self, end: dict[str, Any]) -> None:
        pass


def _row_of_now() -> int:
    return int(time.time() * RATE)


class _Producer(threading.Thread):
    """Adds an entry with a time stamp every millisecond."""

    def __init__(self, server: Running, stream: str) -> None:
        super().__init__(daemon=True)
        self._client, self._stream = server.client(), stream
        self.ended = threading.Event()

    def run(self) -> None:
        begun, sent = time.perf_counter(), 0
        while not self.ended.wait(0.001):
            due = int((time.perf_counter() - begun) * RATE) - sent
            stamp = int(time.time() * 1e6)
            self._client.socket.sendall(request("XADD", self._stream, "*", "t", f"{stamp:016d}") * due)
            self._client.take(due)
            sent += due
        self._client.close()


def latencies(server: Running, stream: str) -> list[float]:
    """Return milliseconds from each time stamp to its arrival at a blocked client, after the warm-up."""
    client = server.client()
    samples: list[float] = []
    last = b"$"
    begun = time.perf_counter()
    while (passed := time.perf_counter() - begun) < WARM_UP + MEASURED:
        reply = client.bytes_of(request("XREAD", "COUNT", 10_000, "BLOCK", 30_000, "STREAMS", stream, last))
        now = time.time() * 1e6
        ids = _ids(reply)
        if not ids:
            raise TimeoutError("no entry arrived for 30 s")
        last = ids[-1]
        if passed > WARM_UP:
            samples += [(now - int(stamp)) / 1000 for stamp in _STAMP.findall(reply)]
    client.close()
    return samples


def _ids(reply: bytes) -> list[bytes]:
    return re.findall(rb"\r\n\$[0-9]+\r\n([0-9]+-[0-9]+)\r\n\*2\r\n", reply)


def _source(server: Running, stream: str) -> DataFrame:
    reader = session().readStream.format("rstream").schema("t STRING")
    options = {"url": f"redis://127.0.0.1:{server.port}/0", "streams": stream, "group": "g"}
    return reader.options(**options).load()


@contextlib.contextmanager
def _query(server: Running, frame: DataFrame, out: str) -> Iterator[None]:
    """Run a query that writes the frame to stream `out` exactly once, with one trigger directly after another."""
    options = {"url": f"redis://127.0.0.1:{server.port}/0", "stream": out, "maxlen": "100000"}
    with tempfile.TemporaryDirectory(prefix="rstream-bench-") as folder:
        writer = frame.writeStream.format("rstream").options(**options, checkpointLocation=folder)
        query = writer.trigger(processingTime="0 seconds").start()
        try:
            yield
        finally:
            query.stop()


class _Runs:
    """Latencies of all runs, by kind of run. One run gives several rows of the table."""

    def __init__(self, server: Running) -> None:
        self._server = server
        self.latencies: dict[str, list[list[float]]] = {"one hop": [], "two hops": [], "floor": []}

    def measure(self, kind: str, percentile: int) -> float:
        """Return a percentile in milliseconds. The median starts a run; other percentiles use the last run."""
        if percentile == 50:
            if not any(self.latencies.values()):
                self._run("two hops")  # warm-up of the JVM, not measured
            self.latencies[kind].append(self._run(kind))
        return statistics.quantiles(self.latencies[kind][-1], n=100)[percentile - 1]

    def _run(self, kind: str) -> list[float]:
        client = self._server.client()
        client.call("FLUSHALL")
        for stream in ("in", "between", "out"):
            client.call("XGROUP", "CREATE", stream, "g", "$", "MKSTREAM")
        client.close()
        with contextlib.ExitStack() as stack:
            if kind == "floor":
                session().dataSource.register(ClockSource)
                stack.enter_context(_query(self._server, session().readStream.format("clock").load(), "out"))
                self._wait_for_row()
                return latencies(self._server, "out")
            hops = ["in", "out"] if kind == "one hop" else ["in", "between", "out"]
            for source, out in itertools.pairwise(hops):
                stack.enter_context(_query(self._server, _source(self._server, source), out))
            self._pass_entry()
            producer = _Producer(self._server, "in")
            stack.callback(producer.ended.set)
            producer.start()
            return latencies(self._server, "out")

    def _pass_entry(self) -> None:
        """Send an entry through all queries, and wait until it arrives: all of them have started then."""
        client = self._server.client()
        client.call("XADD", "in", "*", "t", f"{0:016d}")
        client.close()
        self._wait_for_row()

    def _wait_for_row(self) -> None:
        client = self._server.client()
        deadline = time.monotonic() + _PATIENCE
        while not client.call("XLEN", "out"):
            for query in session().streams.active:
                if (error := query.exception()) is not None:
                    raise error
            if time.monotonic() > deadline:
                raise TimeoutError(f"the first row of the query did not arrive within {_PATIENCE:g} s")
            time.sleep(0.05)
        client.close()


def rows(stack: contextlib.ExitStack) -> list[Row]:
    """Return all rows of the group."""
    runs = _Runs(stack.enter_context(running("redis-server")))

    def figure(kind: str, number: int) -> Callable[[], float]:
        return lambda: runs.measure(kind, number)

    ran = f"{RATE:,} entries/s for {MEASURED:g} s after {WARM_UP:g} s, processingTime 0, exactly once into a stream"
    floor = f"{ran}; peer: a Python source of such rows, into the same sink"
    return [
        Row("P22", "one hop, half of the entries", floor, "ms", 1.1, figure("one hop", 50), figure("floor", 50),
            "the floor", at_least=False, rounds=3),
        Row("P22", "one hop, 99 of 100", "the same runs", "ms", 1.1, figure("one hop", 99), figure("floor", 99),
            "the floor", at_least=False, rounds=3),
        Row("P22", "two hops, half of the entries", f"{ran}, and by a second query into another", "ms", None,
            figure("two hops", 50), at_least=False, rounds=3),
        Row("P22", "two hops, 99 of 100", "the same runs", "ms", None, figure("two hops", 99),
            at_least=False, rounds=3),
    ]  # fmt: skip
