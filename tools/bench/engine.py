"""P13 … P16, P20, P21: the engine's commands, compared with redis-server and fakeredis."""

from __future__ import annotations

import contextlib
import functools
import random
import re
import subprocess
import time
from collections.abc import Callable, Iterator

from tools.bench.client import PAGE, request
from tools.bench.row import Row
from tools.bench.servers import Running, first_pong, have_fakeredis, running

_SMALL = ["f", "__rand_int__", "g", "__rand_int__"]
_WIDE = [word for name in "abcdefghij" for word in (name, "__rand_int__")]
_RATE = re.compile(r"([0-9.]+) requests per second")
_PASSES = 3


def benchmark(server: Running, options: str, seconds: float, words: list[str]) -> float:
    """Return requests per second of redis-benchmark on an empty server. It sends requests for about `seconds`."""
    client = server.client()
    client.call("FLUSHALL")
    client.close()

    def rate(count: int) -> float:
        command = ["redis-benchmark", "-p", str(server.port), "-n", str(count), "-r", "100000000", "-q"]
        printed = subprocess.run(
            [*command, *options.split(), *words], capture_output=True, text=True, check=True
        ).stdout
        return float(_RATE.findall(printed)[-1])

    probe_count = 20_000 if server.kind != "fakeredis" else 1000
    return rate(max(probe_count, int(rate(probe_count) * seconds) // 1000 * 1000))


def fill(server: Running, count: int) -> None:
    """Empty the server, and add `count` entries of two small random fields to stream `s`."""
    client = server.client()
    client.call("FLUSHALL")
    random.seed(1)
    for _ in range(count // PAGE):
        words = [("f", f"{random.randrange(10**8):012d}", "g", f"{random.randrange(10**8):012d}") for _ in range(PAGE)]
        client.socket.sendall(b"".join(request("XADD", "s", "*", *pairs) for pairs in words))
        client.take(PAGE)
    client.close()


def drain(server: Running, count: int) -> float:
    """Return entries per second of XREADGROUP and XACK in thousands, until all entries are acknowledged."""
    client = server.client()
    pages = client.pages()
    assert sum(len(ids) for _command, ids, _size in pages) == count
    acks = [request("XACK", "s", "g", *ids) for _command, ids, _size in pages]
    read = request("XREADGROUP", "GROUP", "g", "c", "COUNT", PAGE, "STREAMS", "s", ">")
    head = len(b"*1\r\n*2\r\n$1\r\ns\r\n")
    rates = []
    for _ in range(_PASSES):
        client.call("XGROUP", "DESTROY", "s", "g")
        client.call("XGROUP", "CREATE", "s", "g", "0")
        started = time.perf_counter()
        for (_command, ids, size), ack in zip(pages, acks, strict=True):
            client.exchange(read, head + size)
            client.exchange(ack, len(b":%d\r\n" % len(ids)))
        rates.append(count / (time.perf_counter() - started))
        assert client.call("XPENDING", "s", "g")[0] == 0
    client.close()
    return max(rates)


def read_pages(server: Running, count: int) -> float:
    """Return entries per second of XRANGE in thousands over the whole stream."""
    client = server.client()
    pages = client.pages()
    rates = []
    for _ in range(_PASSES):
        started = time.perf_counter()
        for command, _ids, size in pages:
            client.exchange(command, size)
        rates.append(count / (time.perf_counter() - started))
    client.close()
    return max(rates)


def rows(stack: contextlib.ExitStack) -> list[Row]:
    """Return all rows of the group. The servers run while the stack is open."""
    engine = stack.enter_context(running("engine"))
    redis = stack.enter_context(running("redis-server"))
    append_only = ["--appendonly", "yes", "--appendfsync", "everysec"]
    logged_engine, logged_redis = (
        stack.enter_context(running(kind, *append_only)) for kind in ("engine", "redis-server")
    )
    rows = [
        *_adding("P13", engine, redis, "redis-server"),
        *_adding("P13", logged_engine, logged_redis, "redis-server", logged=True),
        *_reading(engine, redis, "redis-server", 200_000),
    ]
    if have_fakeredis():
        fake = stack.enter_context(running("fakeredis"))
        rows += _adding("P20", engine, fake, "fakeredis")
        rows += _reading(engine, fake, "fakeredis", 10_000)
    else:
        rows.append(Row("P20", "all of P13 … P16", "", "/s", 10, lambda: 0.0, skipped="fakeredis is not installed"))
    rows.append(Row("P21", "start to first PONG", "python -m spark_streams.engine, PING every 2 ms", "ms", 60,
                    lambda: first_pong("engine"), at_least=False))  # fmt: skip
    return rows


def _adding(number: str, engine: Running, peer: Running, name: str, logged: bool = False) -> Iterator[Row]:
    variants: list[tuple[str, str, str, list[str], float]] = [
        ("P13", "XADD, one client", "-P 100 -c 1", ["xadd", "s", "*", *_SMALL], 1.0),
        ("P13", "XADD, ten clients", "-P 100 -c 10", ["xadd", "s", "*", *_SMALL], 1.0),
        ("P13", "XADD MAXLEN ~", "-P 100 -c 1", ["xadd", "s", "maxlen", "~", "100000", "*", *_SMALL], 1.0),
        ("P13", "XADD, ten fields", "-P 100 -c 1", ["xadd", "s", "*", *_WIDE], 0.8),
        ("P14", "XADD, unpipelined", "-P 1 -c 50", ["xadd", "s", "*", *_SMALL], 0.9),
    ]
    if logged:
        variants = [("P13", "XADD, fsync everysec", "-P 100 -c 1", ["xadd", "s", "*", *_SMALL], 0.7)]
    for row_number, measure, options, words, target in variants:
        run = functools.partial(benchmark, options=options, seconds=1.0, words=words)
        yield Row(
            row_number if number != "P20" else number, measure, f"redis-benchmark {options} {' '.join(words)}", "/s",
            target if number != "P20" else 10, functools.partial(run, engine), functools.partial(run, peer),
            name, rounds=None if number != "P20" else 3,
        )  # fmt: skip


def _reading(engine: Running, peer: Running, name: str, count: int) -> Iterator[Row]:
    def on(server: Running, measure: Callable[[Running, int], float]) -> Callable[[], float]:
        def figure() -> float:
            fill(server, count)
            return measure(server, count)

        return figure

    fake = name == "fakeredis"
    for number, measure, ran, does, target in (
        ("P15", "drain", "XREADGROUP COUNT 1000, XACK of the thousand", drain, 2.0),
        ("P16", "XRANGE", "XRANGE COUNT 1000", read_pages, 2.0),
    ):
        yield Row(
            "P20" if fake else number, measure, f"{ran}; {count:,} entries, best of {_PASSES} passes, replies counted",
            "/s", 10.0 if fake else target, on(engine, does), on(peer, does), name, rounds=3 if fake else None,
        )  # fmt: skip
