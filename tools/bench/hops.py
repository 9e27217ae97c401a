"""P22, P26: time from XADD to the row at the sink, in traffic and after a pause; what an idle query costs."""

from __future__ import annotations

import contextlib
import functools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pyspark.sql.streaming.query import StreamingQuery

from tools.bench.own_source import OwnSource
from tools.bench.row import Row
from tools.bench.servers import STAMPS, Running, adding, ids_in, request, running
from tools.bench.spark import entries, session, source, wait
from tools.bench.spark import running as running_query
from tools.servers.server import processor_seconds

RATE = 1_000  # entries per second
WARM_UP, MEASURED = 6.0, 10.0  # seconds


def measure(server: Running, hops: Sequence[str]) -> dict[str, float]:
    """Return percentiles of the milliseconds over these streams, the last of which is `out`. Of one: the floor."""
    server.call("FLUSHALL")
    for stream in ("in", "between", "out"):
        server.call("XGROUP", "CREATE", stream, "g", "$", "MKSTREAM")
    session().dataSource.register(OwnSource)
    if len(hops) == 1:
        frames = [session().readStream.format("own").option("rate", RATE).load()]
    else:
        frames = [source(server.url, "t STRING", streams=stream) for stream in hops[:-1]]
    with contextlib.ExitStack() as stack:
        queries = [
            stack.enter_context(running_query(frame, "0 seconds", url=server.url, stream=out, maxlen="100000"))
            for frame, out in zip(frames, hops[-len(frames) :], strict=True)
        ]
        if len(hops) > 1:  # the first entry passes when all queries have started
            server.call("XADD", "in", "*", "t", f"{0:016d}")
        wait(lambda: server.call("XLEN", "out"), *queries)
        if len(hops) > 1:
            stack.enter_context(adding(server.port, "in", RATE, 0.001))
        points = statistics.quantiles(latencies(server, "out"), n=100)
    return {"half": points[49], "99 of 100": points[98]}


def latencies(server: Running, stream: str) -> list[float]:
    """Return milliseconds from each time stamp to its arrival at a blocked client, after the warm-up."""
    samples: list[float] = []
    last = b"$"
    begun = time.perf_counter()
    with server.client() as client:
        while (passed := time.perf_counter() - begun) < WARM_UP + MEASURED:
            reply = client.bytes_of(request("XREAD", "COUNT", 10_000, "BLOCK", 30_000, "STREAMS", stream, last))
            now = time.time() * 1e6
            if not (ids := ids_in(reply)):
                raise TimeoutError("no entry arrived for 30 s")
            last = ids[-1]
            if passed > WARM_UP:
                samples += [(now - int(stamp)) / 1000 for stamp in STAMPS.findall(reply)]
    return samples


def hops_rows(stack: contextlib.ExitStack) -> list[Row]:
    """Return all rows of the group."""
    server = stack.enter_context(running("redis-server"))
    warm = functools.cache(lambda: measure(server, ("in", "between", "out")))  # warm-up of the JVM, not measured

    def over(*hops: str) -> Callable[[], dict[str, float]]:
        return lambda: warm() and measure(server, hops)

    one, two, floor = over("in", "out"), over("in", "between", "out"), over("out")
    ran = f"{RATE:,} entries/s for {MEASURED:g} s after {WARM_UP:g} s, processingTime 0, exactly once into a stream"
    row = functools.partial(Row, "P22", unit="ms", at_least=False, rounds=3)
    beside = functools.partial(row, ran=f"{ran}; peer: a Python source of such rows, into the same sink", target=1.1,
                               ours=one, peer=floor, peer_name="the floor")  # fmt: skip
    behind = functools.partial(row, ran=f"{ran}, and by a second query into another", target=None, ours=two)
    return [
        beside("one hop, half of the entries", name="half"),
        beside("one hop, 99 of 100", name="99 of 100"),
        behind("two hops, half of the entries", name="half"),
        behind("two hops, 99 of 100", name="99 of 100"),
    ]


# -- a query without new entries: P26 ----------------------------------------------------------------------------------


SECONDS = 10.0
STREAMS = (1, 1_000, 10_000)
SAMPLES = 10
_SOURCE_PROCESS = b"streaming_source_runner"  # the Python process on the driver that runs a query's source


@contextlib.contextmanager
def idle_query(server: Running, streams: int) -> Iterator[StreamingQuery]:
    """Run a query over this number of streams into stream `out`. It has read all entries, and has been idle for 3 s."""
    with server.client() as client:
        client.call("FLUSHALL")
        client.send(b"".join(entries(f"in:{number}", 1) for number in range(streams)), streams)
    names = {"streams": "in:0"} if streams == 1 else {"streamsPattern": "in:*"}
    with running_query(source(server.url, **names), "0 seconds", url=server.url, stream="out") as query:
        wait(lambda: server.call("XLEN", "out") == streams, query)
        time.sleep(3)
        yield query


def source_processes() -> Iterator[int]:
    """Yield the IDs of the sources' Python processes on the driver."""
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # a process may end at any moment
            if folder.name.isdigit() and _SOURCE_PROCESS in (folder / "cmdline").read_bytes():
                yield int(folder.name)


def idleness(server: Running, streams: int) -> dict[str, float]:
    """Measure the cost of a query over this number of streams without new entries."""
    with idle_query(server, streams):
        return cost_now(server)


def cost_now(server: Running) -> dict[str, float]:
    """Return what the query that runs costs: commands of the server per second, and percent of a core in its source."""
    before, begun = _totals(server), time.monotonic()
    time.sleep(SECONDS)
    after, seconds = _totals(server), time.monotonic() - begun
    commands, source = ((end - start) / seconds for start, end in zip(before, after, strict=True))
    return {"commands": commands, "source": 100 * source}


def _totals(server: Running) -> tuple[float, float]:
    """Return the number of commands of the server, and processor seconds of the source's processes."""
    info = server.call("INFO", "stats").partition(b"total_commands_processed:")[2]
    return float(info.split()[0]), sum(map(processor_seconds, source_processes()))


def first_entry(server: Running) -> float:
    """Return the median milliseconds from XADD to the entry in the next stream, each after ten idle seconds."""
    latencies = []
    with idle_query(server, 1), server.client() as client:
        for _ in range(SAMPLES):
            time.sleep(SECONDS)
            last = client.call("XREVRANGE", "out", "+", "-", "COUNT", 1)[0][0]
            begun = time.perf_counter()
            client.send(entries("in:0", 1), 1)
            client.call("XREAD", "BLOCK", 10_000, "STREAMS", "out", last)
            latencies.append((time.perf_counter() - begun) * 1000)
    return statistics.median(latencies)


def stop(server: Running) -> float:
    """Return the seconds that query.stop() takes without new entries."""
    with idle_query(server, 1) as query:
        begun = time.perf_counter()
        query.stop()
        return time.perf_counter() - begun


def idle_rows(stack: contextlib.ExitStack) -> list[Row]:
    """Return all rows of the group."""
    server = stack.enter_context(running("redis-server"))
    row = functools.partial(Row, "P26", at_least=False, rounds=1)
    rows = []
    for count in STREAMS:
        cost = functools.partial(idleness, server, count)
        rows += [
            row(f"idle: commands per second, {count:,} streams", f"{SECONDS:g} s without an entry", "/s", 5.0, cost,
                name="commands"),
            row(f"idle: processor, source, {count:,} streams", "its Python processes on the driver", "%", None, cost,
                name="source"),
        ]  # fmt: skip
    ran = f"from XADD to the entry in the next stream, {SAMPLES} times after {SECONDS:g} s of idleness"
    return [
        *rows,
        row("idle: first entry, median", ran, "ms", None, functools.partial(first_entry, server)),
        row("idle: query.stop()", "after 3 s of idleness", "s", 0.2, functools.partial(stop, server), rounds=None),
    ]
