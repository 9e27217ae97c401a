"""P22: from XADD to the row at the sink, at a steady thousand entries a second, beside a Python source that does
nothing but say when its rows would have come.
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
    """format("clock"): a thousand rows a second, each with the microsecond at which it is there."""

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

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # Spark asks what a reader has
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
    """Adds a stamped entry a millisecond."""

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
    """Milliseconds from each stamp to here, for some seconds behind the warm-up; read by a blocked client."""
    client = server.client()
    found: list[float] = []
    last = b"$"
    begun = time.perf_counter()
    while (passed := time.perf_counter() - begun) < WARM_UP + MEASURED:
        reply = client.bytes_of(request("XREAD", "COUNT", 10_000, "BLOCK", 30_000, "STREAMS", stream, last))
        now = time.time() * 1e6
        ids = _ids(reply)
        if not ids:
            raise TimeoutError("nothing came for half a minute")
        last = ids[-1]
        if passed > WARM_UP:
            found += [(now - int(stamp)) / 1000 for stamp in _STAMP.findall(reply)]
    client.close()
    return found


def _ids(reply: bytes) -> list[bytes]:
    return re.findall(rb"\r\n\$[0-9]+\r\n([0-9]+-[0-9]+)\r\n\*2\r\n", reply)


def _source(server: Running, stream: str) -> DataFrame:
    reader = session().readStream.format("rstream").schema("t STRING")
    given = {"url": f"redis://127.0.0.1:{server.port}/0", "streams": stream, "group": "g"}
    return reader.options(**given).load()


@contextlib.contextmanager
def _query(server: Running, frame: DataFrame, out: str) -> Iterator[None]:
    """frame → stream out, exactly once, trigger after trigger."""
    given = {"url": f"redis://127.0.0.1:{server.port}/0", "stream": out, "maxlen": "100000"}
    with tempfile.TemporaryDirectory(prefix="rstream-bench-") as folder:
        to = frame.writeStream.format("rstream").options(**given, checkpointLocation=folder)
        query = to.trigger(processingTime="0 seconds").start()
        try:
            yield
        finally:
            query.stop()


class _Seen:
    """What each kind of run has shown: one measure gives several rows of the table."""

    def __init__(self, server: Running) -> None:
        self._server = server
        self.all: dict[str, list[list[float]]] = {"one hop": [], "two hops": [], "floor": []}

    def measure(self, kind: str, share: float) -> float:
        """Milliseconds that so many (in hundredths) are not above. The median makes a run, the others look at it."""
        if share == 50:
            if not any(self.all.values()):
                self._run("two hops")  # what the JVM compiles while it is fresh is nobody's figure
            self.all[kind].append(self._run(kind))
        return statistics.quantiles(self.all[kind][-1], n=100)[int(share) - 1]

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
                self._wait_for_one()
                return latencies(self._server, "out")
            hops = ["in", "out"] if kind == "one hop" else ["in", "between", "out"]
            for source, out in itertools.pairwise(hops):
                stack.enter_context(_query(self._server, _source(self._server, source), out))
            self._pass_one()
            producer = _Producer(self._server, "in")
            stack.callback(producer.ended.set)
            producer.start()
            return latencies(self._server, "out")

    def _pass_one(self) -> None:
        """An entry, until it has gone through all queries: they have begun then."""
        client = self._server.client()
        client.call("XADD", "in", "*", "t", f"{0:016d}")
        client.close()
        self._wait_for_one()

    def _wait_for_one(self) -> None:
        client = self._server.client()
        deadline = time.monotonic() + _PATIENCE
        while not client.call("XLEN", "out"):
            for query in session().streams.active:
                if (error := query.exception()) is not None:
                    raise error
            if time.monotonic() > deadline:
                raise TimeoutError("the query's first row did not come")
            time.sleep(0.05)
        client.close()


def rows(stack: contextlib.ExitStack) -> list[Row]:
    """All rows of the group."""
    seen = _Seen(stack.enter_context(running("redis-server")))

    def of(kind: str, share: int) -> Callable[[], float]:
        return lambda: seen.measure(kind, share)

    ran = f"{RATE:,} entries/s for {MEASURED:g} s behind {WARM_UP:g} s, processingTime 0, exactly once into a stream"
    floor = f"{ran}; peer: a Python source that makes such rows, into the same sink"
    return [
        Row("P22", "one hop, half of the entries", floor, "ms", 1.1, of("one hop", 50), of("floor", 50), "the floor",
            at_least=False, rounds=3),
        Row("P22", "one hop, 99 of 100", "the same runs", "ms", 1.1, of("one hop", 99), of("floor", 99), "the floor",
            at_least=False, rounds=3),
        Row("P22", "two hops, half of the entries", f"{ran}, and from there into another", "ms", None,
            of("two hops", 50), at_least=False, rounds=3),
        Row("P22", "two hops, 99 of 100", "the same runs", "ms", None, of("two hops", 99), at_least=False, rounds=3),
    ]  # fmt: skip
