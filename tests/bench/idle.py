"""P26: what a query costs while nothing comes, and how soon it has the first entry after that."""

from __future__ import annotations

import contextlib
import functools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.bench.row import Row
from tests.bench.servers import Running, running
from tests.bench.spark import SCHEMA, entries, session

SECONDS = 10.0
STREAMS = (1, 1_000, 10_000)
SAMPLES = 10
_TICKS = 100.0  # of /proc/…/stat, a second


@contextlib.contextmanager
def idle_query(server: Running, streams: int) -> Iterator[Any]:
    """A query over so many streams that has read all there is, into the stream `out`; it has been idle for a while."""
    client = server.client()
    client.call("FLUSHALL")
    for at in range(streams):
        client.socket.sendall(entries(f"in:{at}", 1))
    client.take(streams)
    given = {"url": f"redis://127.0.0.1:{server.port}/0", "group": "g", "startingOffsets": "earliest"}
    given |= {"streams": "in:0"} if streams == 1 else {"streamsPattern": "in:*"}
    rows = session().readStream.format("rstream").schema(SCHEMA).options(**given).load()
    with tempfile.TemporaryDirectory() as folder:
        to = {"url": given["url"], "stream": "out", "checkpointLocation": str(Path(folder) / "checkpoint")}
        query = rows.writeStream.format("rstream").options(**to).start()
        try:
            while client.call("XLEN", "out") < streams:
                time.sleep(0.1)
            time.sleep(3)
            yield query
        finally:
            query.stop()
            client.close()


def commands(server: Running) -> int:
    """How many commands the server has carried out."""
    client = server.client()
    told = client.call("INFO", "stats").decode()
    client.close()
    return int(told.partition("total_commands_processed:")[2].split()[0])


def processor_seconds() -> float:
    """What the source's Python processes on the driver have computed so far."""
    total = 0.0
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and b"streaming_source_runner" in (folder / "cmdline").read_bytes():
                words = (folder / "stat").read_text().rpartition(")")[2].split()
                total += (int(words[11]) + int(words[12])) / _TICKS
    return total


def per_second(server: Running, streams: int, count: Callable[[], float]) -> float:
    """How much `count` grows in a second of idleness."""
    with idle_query(server, streams):
        before, begun = count(), time.monotonic()
        time.sleep(SECONDS)
        return (count() - before) / (time.monotonic() - begun)


def processor(server: Running, streams: int) -> float:
    """Percent of a core that the source's Python processes on the driver take."""
    return 100 * per_second(server, streams, processor_seconds)


def first_entry(server: Running) -> list[float]:
    """Milliseconds from XADD to the entry in the next stream, each after ten seconds of idleness."""
    found = []
    with idle_query(server, 1):
        client = server.client()
        for _ in range(SAMPLES):
            time.sleep(SECONDS)
            last = client.call("XREVRANGE", "out", "+", "-", "COUNT", 1)[0][0]
            begun = time.perf_counter()
            client.socket.sendall(entries("in:0", 1))
            client.take(1)
            client.call("XREAD", "BLOCK", 10_000, "STREAMS", "out", last)
            found.append((time.perf_counter() - begun) * 1000)
        client.close()
    return sorted(found)


def stop(server: Running) -> float:
    """Seconds that query.stop() takes while nothing comes."""
    with idle_query(server, 1) as query:
        begun = time.perf_counter()
        query.stop()
        return time.perf_counter() - begun


def rows(stack: contextlib.ExitStack) -> list[Row]:
    """All rows of the group."""
    server = stack.enter_context(running("redis-server"))
    latencies = functools.cache(lambda: first_entry(server))
    found = [
        Row("P26", f"idle: commands a second, {count:,} streams", f"{SECONDS:g} s without an entry", "/s",
            5.0, functools.partial(per_second, server, count, lambda: commands(server)), at_least=False, rounds=1)
        for count in STREAMS
    ] + [
        Row("P26", f"idle: processor, {count:,} streams", "the source's Python processes on the driver", "%", 1.0,
            functools.partial(processor, server, count), at_least=False, rounds=1)
        for count in STREAMS
    ]  # fmt: skip
    ran = f"from XADD to the entry in the next stream, {SAMPLES} times after {SECONDS:g} s of idleness"
    return [
        *found,
        Row("P26", "idle: first entry, median", ran, "ms", None, lambda: statistics.median(latencies()), rounds=1),
        Row("P26", "idle: first entry, slowest", ran, "ms", None, lambda: latencies()[-1], rounds=1),
        Row("P26", "idle: query.stop()", "after 3 s of idleness", "s", 0.2, lambda: stop(server), at_least=False),
    ]
