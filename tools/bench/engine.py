"""P13 … P16, P20, P21: the engine's commands, compared with redis-server and fakeredis."""

from __future__ import annotations

import contextlib
import functools
import random
import re
import subprocess
import time
from collections.abc import Callable

from tools.bench.client import PAGE, request
from tools.bench.row import Row
from tools.bench.servers import Running, first_pong, running

_SMALL = ["*", "f", "__rand_int__", "g", "__rand_int__"]
_WIDE = ["*", *(word for name in "abcdefghij" for word in (name, "__rand_int__"))]
_RATE = re.compile(r"([0-9.]+) requests per second")
_PASSES = 3
_READ = {"redis-server": 200_000, "fakeredis": 10_000}  # entries
# Number, measure, options of redis-benchmark, arguments of XADD, target
_ADDED: list[tuple[str, str, str, list[str], float]] = [
    ("P13", "XADD, one client", "-P 100 -c 1", _SMALL, 1.0),
    ("P13", "XADD, ten clients", "-P 100 -c 10", _SMALL, 1.0),
    ("P13", "XADD MAXLEN ~", "-P 100 -c 1", ["maxlen", "~", "100000", *_SMALL], 1.0),
    ("P13", "XADD, ten fields", "-P 100 -c 1", _WIDE, 0.8),
    ("P14", "XADD, unpipelined", "-P 1 -c 50", _SMALL, 0.9),
]
_LOGGED: list[tuple[str, str, str, list[str], float]] = [("P13", "XADD, fsync everysec", "-P 100 -c 1", _SMALL, 0.7)]


def benchmark(server: Running, options: str, seconds: float, words: list[str]) -> float:
    """Return requests per second of redis-benchmark on an empty server. It sends requests for about `seconds`."""
    server.call("FLUSHALL")

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
    random.seed(1)
    with server.client() as client:
        client.call("FLUSHALL")
        for _ in range(count // PAGE):
            words = [("f", f"{random.randrange(10**8):012d}", "g", f"{random.randrange(10**8):012d}")
                     for _ in range(PAGE)]  # fmt: skip
            client.send(b"".join(request("XADD", "s", "*", *pairs) for pairs in words), PAGE)


def drain(server: Running, count: int) -> float:
    """Return entries per second of XREADGROUP and XACK in thousands, until all entries are acknowledged."""
    fill(server, count)
    read = request("XREADGROUP", "GROUP", "g", "c", "COUNT", PAGE, "STREAMS", "s", ">")
    head = len(b"*1\r\n*2\r\n$1\r\ns\r\n")
    rates = []
    with server.client() as client:
        pages = client.pages()
        assert sum(len(ids) for _command, ids, _size in pages) == count
        acks = [request("XACK", "s", "g", *ids) for _command, ids, _size in pages]
        for _ in range(_PASSES):
            client.call("XGROUP", "DESTROY", "s", "g")
            client.call("XGROUP", "CREATE", "s", "g", "0")
            started = time.perf_counter()
            for (_command, ids, size), ack in zip(pages, acks, strict=True):
                client.exchange(read, head + size)
                client.exchange(ack, len(b":%d\r\n" % len(ids)))
            rates.append(count / (time.perf_counter() - started))
            assert client.call("XPENDING", "s", "g")[0] == 0
    return max(rates)


def read_pages(server: Running, count: int) -> float:
    """Return entries per second of XRANGE in thousands over the whole stream."""
    fill(server, count)
    rates = []
    with server.client() as client:
        pages = client.pages()
        for _ in range(_PASSES):
            started = time.perf_counter()
            for command, _ids, size in pages:
                client.exchange(command, size)
            rates.append(count / (time.perf_counter() - started))
    return max(rates)


_DRAINED: list[tuple[str, str, str, Callable[[Running, int], float]]] = [
    ("P15", "drain", "XREADGROUP COUNT 1000, XACK of the thousand", drain),
    ("P16", "XRANGE", "XRANGE COUNT 1000", read_pages),
]


def rows(stack: contextlib.ExitStack) -> list[Row]:
    """Return all rows of the group. The servers run while the stack is open."""
    engine, redis, fake = (stack.enter_context(running(kind)) for kind in ("engine", "redis-server", "fakeredis"))
    append_only = ["--appendonly", "yes", "--appendfsync", "everysec"]
    logged = [stack.enter_context(running(kind, *append_only)) for kind in ("engine", "redis-server")]
    return [
        *(_added(engine, redis, *one) for one in _ADDED),
        *(_added(logged[0], logged[1], *one) for one in _LOGGED),
        *(_read(engine, redis, *one) for one in _DRAINED),
        *(_added(engine, fake, *one) for one in _ADDED),
        *(_read(engine, fake, *one) for one in _DRAINED),
        Row("P21", "start to first PONG", "python -m spark_streams.engine, PING every 2 ms", "ms", 60,
            lambda: first_pong("engine"), at_least=False),
    ]  # fmt: skip


def _added(engine: Running, peer: Running, number: str, measure: str, options: str, words: list[str],
           target: float) -> Row:  # fmt: skip
    command = ["xadd", "s", *words]
    run = functools.partial(benchmark, options=options, seconds=1.0, words=command)
    ran = f"redis-benchmark {options} {' '.join(command)}"
    return _row(engine, peer, number, measure, ran, target, run)


def _read(engine: Running, peer: Running, number: str, measure: str, ran: str,
          run: Callable[[Running, int], float]) -> Row:  # fmt: skip
    count = _READ[peer.kind]
    ran = f"{ran}; {count:,} entries, best of {_PASSES} passes, replies counted"
    return _row(engine, peer, number, measure, ran, 2.0, lambda server: run(server, count))


def _row(engine: Running, peer: Running, number: str, measure: str, ran: str, target: float,
         run: Callable[[Running], float]) -> Row:  # fmt: skip
    fake = peer.kind == "fakeredis"
    return Row("P20" if fake else number, measure, ran, "/s", 10 if fake else target, functools.partial(run, engine),
               functools.partial(run, peer), peer.kind, rounds=3 if fake else None)  # fmt: skip
