"""P22: time from XADD to the row at the sink, at a thousand entries per second.

The peer is a Python source that returns only the times at which its rows were due.
"""

from __future__ import annotations

import contextlib
import functools
import statistics
import time
from collections.abc import Sequence

from tools.bench.client import STAMPS, adding, ids_in, request
from tools.bench.own_source import RATE, ClockSource
from tools.bench.row import Row
from tools.bench.servers import Running, running
from tools.bench.spark import running as running_query
from tools.bench.spark import session, source, wait

WARM_UP, MEASURED = 6.0, 10.0  # seconds


def measure(server: Running, hops: Sequence[str]) -> dict[str, float]:
    """Return percentiles of the milliseconds over these streams, the last of which is `out`. Of one: the floor."""
    server.call("FLUSHALL")
    for stream in ("in", "between", "out"):
        server.call("XGROUP", "CREATE", stream, "g", "$", "MKSTREAM")
    session().dataSource.register(ClockSource)
    if len(hops) == 1:
        frames = [session().readStream.format("clock").load()]
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


def rows(stack: contextlib.ExitStack) -> list[Row]:
    """Return all rows of the group."""
    server = stack.enter_context(running("redis-server"))
    warm = functools.cache(lambda: measure(server, ("in", "between", "out")))  # warm-up of the JVM, not measured
    one, two, floor = (
        functools.partial(lambda hops: warm() and measure(server, hops), hops)
        for hops in (("in", "out"), ("in", "between", "out"), ("out",))
    )
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
