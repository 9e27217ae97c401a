"""P26: cost of a query without new entries, and latency of the first entry after that."""

from __future__ import annotations

import contextlib
import functools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.bench.client import RawClient
from tools.bench.row import Row
from tools.bench.servers import Running, running
from tools.bench.spark import SCHEMA, entries, session

SECONDS = 10.0
STREAMS = (1, 1_000, 10_000)
SAMPLES = 10
SOURCE_PROCESS = b"streaming_source_runner"  # the Python process on the driver that runs a query's source
_TICKS = 100.0  # of /proc/…/stat, per second


@contextlib.contextmanager
def idle_query(server: Running, streams: int) -> Iterator[Any]:
    """Run a query over this number of streams into stream `out`. It has read all entries, and has been idle for 3 s."""
    client = server.client()
    client.call("FLUSHALL")
    for number in range(streams):
        client.socket.sendall(entries(f"in:{number}", 1))
    client.take(streams)
    options = {"url": f"redis://127.0.0.1:{server.port}/0", "group": "g", "startingOffsets": "earliest"}
    options |= {"streams": "in:0"} if streams == 1 else {"streamsPattern": "in:*"}
    rows = session().readStream.format("rstream").schema(SCHEMA).options(**options).load()
    with tempfile.TemporaryDirectory() as folder:
        sink = {"url": options["url"], "stream": "out", "checkpointLocation": str(Path(folder) / "checkpoint")}
        query = rows.writeStream.format("rstream").options(**sink).start()
        try:
            while client.call("XLEN", "out") < streams:
                time.sleep(0.1)
            time.sleep(3)
            yield query
        finally:
            query.stop()
            client.close()


@dataclass(frozen=True)
class Idleness:
    """Cost of a query without new entries: commands per second, and percent of a core by process."""

    commands: float
    server: float
    source: float  # the source's Python processes on the driver
    jvm: float  # Spark's driver


def _info(client: RawClient, section: str) -> dict[str, str]:
    lines = client.call("INFO", section).decode().splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _processor_seconds(pid: int | str) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / _TICKS


def _totals(server: Running, client: RawClient) -> list[float]:
    """Return the number of commands of the server, and processor seconds of the server, the source and the JVM."""
    source, jvm = (
        sum(map(_processor_seconds, processes(command)))
        for command in (SOURCE_PROCESS, b"org.apache.spark.deploy.SparkSubmit")
    )
    commands = float(_info(client, "stats")["total_commands_processed"])
    return [commands, _processor_seconds(server.pid), source, jvm]


def processes(command: bytes) -> Iterator[int]:
    """Yield the IDs of processes whose command line has this part."""
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # a process may end at any moment
            if folder.name.isdigit() and command in (folder / "cmdline").read_bytes():
                yield int(folder.name)


def idleness(server: Running, streams: int) -> Idleness:
    """Measure the cost of a query over this number of streams without new entries."""
    with idle_query(server, streams):
        return cost_now(server)


def cost_now(server: Running) -> Idleness:
    """Measure the cost of the query that runs, for some seconds."""
    with contextlib.closing(server.client()) as client:
        before, begun = _totals(server, client), time.monotonic()
        time.sleep(SECONDS)
        after, seconds = _totals(server, client), time.monotonic() - begun
    commands, *busy = [(end - start) / seconds for start, end in zip(before, after, strict=True)]
    return Idleness(commands, *[100 * part for part in busy])


def _figure(measure: Callable[[], Idleness], name: str) -> float:
    return float(getattr(measure(), name))


def first_entry(server: Running) -> list[float]:
    """Return sorted milliseconds from XADD to the entry in the next stream, each after ten seconds without entries."""
    latencies = []
    with idle_query(server, 1):
        client = server.client()
        for _ in range(SAMPLES):
            time.sleep(SECONDS)
            last = client.call("XREVRANGE", "out", "+", "-", "COUNT", 1)[0][0]
            begun = time.perf_counter()
            client.socket.sendall(entries("in:0", 1))
            client.take(1)
            client.call("XREAD", "BLOCK", 10_000, "STREAMS", "out", last)
            latencies.append((time.perf_counter() - begun) * 1000)
        client.close()
    return sorted(latencies)


def stop(server: Running) -> float:
    """Return the seconds that query.stop() takes without new entries."""
    with idle_query(server, 1) as query:
        begun = time.perf_counter()
        query.stop()
        return time.perf_counter() - begun


def rows(stack: contextlib.ExitStack) -> list[Row]:
    """Return all rows of the group."""
    server = stack.enter_context(running("redis-server"))
    latencies = functools.cache(lambda: first_entry(server))
    quiet = f"{SECONDS:g} s without an entry"
    figures = (
        ("commands", "commands per second", quiet, "/s", 5.0),
        ("server", "processor, server", quiet, "%", None),
        ("source", "processor, source", "its Python processes on the driver", "%", None),
        ("jvm", "processor, Spark", "the driver's JVM", "%", None),
    )
    rows = []
    for count in STREAMS:
        cost = functools.cache(functools.partial(idleness, server, count))
        rows += [
            Row("P26", f"idle: {measure}, {count:,} streams", ran, unit, target, functools.partial(_figure, cost, name),
                at_least=False, rounds=1)
            for name, measure, ran, unit, target in figures
        ]  # fmt: skip
    ran = f"from XADD to the entry in the next stream, {SAMPLES} times after {SECONDS:g} s of idleness"
    return [
        *rows,
        Row("P26", "idle: first entry, median", ran, "ms", None, lambda: statistics.median(latencies()), rounds=1),
        Row("P26", "idle: first entry, slowest", ran, "ms", None, lambda: latencies()[-1], rounds=1),
        Row("P26", "idle: query.stop()", "after 3 s of idleness", "s", 0.2, lambda: stop(server), at_least=False),
    ]
