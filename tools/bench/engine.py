"""P13 … P21: the engine beside redis-server and fakeredis: rates, memory, and latency of blocked consumers."""

from __future__ import annotations

import contextlib
import functools
import random
import re
import selectors
import subprocess
import time
from collections.abc import Callable

from tools.bench.row import Row
from tools.bench.servers import PAGE, STAMPS, RawClient, Running, first_pong, request, running

_SMALL = ["*", "f", "__rand_int__", "g", "__rand_int__"]
_WIDE = ["*", *(word for name in "abcdefghij" for word in (name, "__rand_int__"))]
_RATE = re.compile(r"([0-9.]+) requests per second")
_PASSES = 3


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


# Number, measure, description of a run, target beside redis-server, a run.
_Measure = tuple[str, str, str, float, Callable[[Running], float]]


def _added(number: str, measure: str, options: str, words: list[str], target: float = 1.0) -> _Measure:
    command = ["xadd", "s", *words]
    run = functools.partial(benchmark, options=options, seconds=1.0, words=command)
    return number, measure, f"redis-benchmark {options} {' '.join(command)}", target, run


def _read(count: int) -> list[_Measure]:
    ran = f"; {count:,} entries, best of {_PASSES} passes, replies counted"
    acknowledged = f"XREADGROUP COUNT 1000, XACK of the thousand{ran}"
    return [
        ("P15", "drain", acknowledged, 2.0, functools.partial(drain, count=count)),
        ("P16", "XRANGE", f"XRANGE COUNT 1000{ran}", 2.0, functools.partial(read_pages, count=count)),
    ]


def _compared(engine: Running, peer: Running, measures: list[_Measure]) -> list[Row]:
    is_fake = peer.kind == "fakeredis"
    return [
        Row("P20" if is_fake else number, measure, ran, "/s", 10 if is_fake else target, functools.partial(run, engine),
            functools.partial(run, peer), peer.kind, rounds=3 if is_fake else None)
        for number, measure, ran, target, run in measures
    ]  # fmt: skip


def engine_rows(stack: contextlib.ExitStack) -> list[Row]:
    """Return all rows of the group. The servers run while the stack is open."""
    engine, redis, fake = (stack.enter_context(running(kind)) for kind in ("engine", "redis-server", "fakeredis"))
    append_only = ["--appendonly", "yes", "--appendfsync", "everysec"]
    logged_engine, logged_redis = (
        stack.enter_context(running(kind, *append_only)) for kind in ("engine", "redis-server")
    )
    added = [
        _added("P13", "XADD, one client", "-P 100 -c 1", _SMALL),
        _added("P13", "XADD, ten clients", "-P 100 -c 10", _SMALL),
        _added("P13", "XADD MAXLEN ~", "-P 100 -c 1", ["maxlen", "~", "100000", *_SMALL]),
        _added("P13", "XADD, ten fields", "-P 100 -c 1", _WIDE, 0.8),
        _added("P14", "XADD, unpipelined", "-P 1 -c 50", _SMALL, 0.9),
    ]
    return [
        *_compared(engine, redis, added),
        *_compared(logged_engine, logged_redis, [_added("P13", "XADD, fsync everysec", "-P 100 -c 1", _SMALL, 0.7)]),
        *_compared(engine, redis, _read(200_000)),
        *_compared(engine, fake, [*added, *_read(10_000)]),
        Row("P21", "start to first PONG", "python -m spark_streams.engine, PING every 2 ms", "ms", 60,
            lambda: first_pong("engine"), at_least=False),
    ]  # fmt: skip


# -- memory: P17, P18 --------------------------------------------------------------------------------------------------


ENTRIES = 1_000_000
_IDLE = 30.0  # seconds that the engine may take to pack cold data
# Groups that read the stream before the measurement, and groups that are measured. A first read takes 2 MB of working
# memory (also with NOACK), and the lists of the first ten groups, 0.3 MB each, fit into memory that packing has freed.
_GROUPS = {"engine": (15, 10), "redis-server": (0, 1)}


def measure_memory(kind: str) -> dict[str, float]:
    """Fill a new server, and read its entries through groups. Return bytes per entry, and megabytes when `empty`."""
    with running(kind) as server:
        empty = server.resident() / 1e6
        before = _used(server)
        fill(server, ENTRIES)
        hot = (_used(server) - before) / ENTRIES
        wait_until_steady(server)
        cold = (_used(server) - before) / ENTRIES
        before_groups, groups = _GROUPS[kind]
        deliver(server, range(before_groups))
        after = _allocated(server)
        deliver(server, range(before_groups, before_groups + groups))
        pending = (_allocated(server) - after) / (groups * ENTRIES)
    return {"empty": empty, "hot": hot, "cold": cold, "pending": pending}


def deliver(server: Running, groups: range) -> None:
    """Let each of these new groups read the whole stream."""
    with server.client() as client:
        for number in groups:
            client.call("XGROUP", "CREATE", "s", number, "0")
            for _ in range(ENTRIES // PAGE):
                client.bytes_of(request("XREADGROUP", "GROUP", number, "c", "COUNT", PAGE, "STREAMS", "s", ">"))
    wait_until_steady(server)


def _used(server: Running) -> float:
    if server.kind == "engine":
        return server.resident()
    return float(server.call("MEMORY", "USAGE", "s", "SAMPLES", 0) or 0)


def _allocated(server: Running) -> float:
    """Return bytes, as `_used`. For redis-server from used_memory: its MEMORY USAGE only estimates groups."""
    if server.kind == "engine":
        return server.resident()
    return float(server.call("INFO", "memory").split(b"used_memory:")[1].split(b"\r\n")[0])


def wait_until_steady(server: Running) -> None:
    """Wait until the engine has packed its cold data. Another server is steady."""
    deadline = time.monotonic() + _IDLE
    last = server.resident()
    same = 0 if server.kind == "engine" else 4
    while time.monotonic() < deadline and same < 4:
        time.sleep(0.5)
        now = server.resident()
        same = same + 1 if abs(now - last) < 1 << 20 else 0
        last = now


def memory_rows(_stack: contextlib.ExitStack) -> list[Row]:
    """Return all rows of the group. Each side is measured once, because memory does not vary."""
    ours, peer = functools.partial(measure_memory, "engine"), functools.partial(measure_memory, "redis-server")
    row = functools.partial(Row, ours=ours, at_least=False, rounds=1)
    ran = f"{ENTRIES:,} entries of two fields of 12 digits; private memory of the engine, MEMORY USAGE of redis-server"
    delivered = f"{ENTRIES:,} delivered in thousands"
    return [
        row("P17", "bytes per entry, cold", f"{ran}; after some seconds without commands", "B", 1.0, peer=peer,
            name="cold"),
        row("P17", "bytes per entry, hot", ran, "B", 1.8, peer=peer, name="hot"),
        row("P17", "an engine that holds nothing", "private memory", "MB", 16, name="empty"),
        row("P18", "bytes per pending entry", f"{delivered} to each of ten groups", "B", 1.0, name="pending"),
        row("P18", "against redis-server", delivered, "B", None, peer=peer, name="pending"),
    ]  # fmt: skip


# -- latency: P19 ------------------------------------------------------------------------------------------------------


CONSUMERS = 10
RATE = 10_000  # messages per second
SECONDS = 4.0
OLD = 1_000_000


class _Consumer:
    """A connection that waits in XREADGROUP, or will soon wait there again."""

    def __init__(self, client: RawClient, name: str) -> None:
        self.client = client
        self.command = request("XREADGROUP", "GROUP", "g", name, "COUNT", 100, "BLOCK", 0, "STREAMS", "s", ">")
        self.data = b""
        client.socket.sendall(self.command)
        client.socket.setblocking(False)

    def take(self) -> list[int]:
        """Receive bytes. If a reply is complete, return its time stamps and send the next command."""
        self.data += self.client.socket.recv(1 << 20)
        stamps = STAMPS.findall(self.data)
        count = re.match(rb"\*1\r\n\*2\r\n\$1\r\ns\r\n\*([0-9]+)\r\n", self.data)
        if count is None or len(stamps) < int(count[1]):
            return []
        self.data = b""
        self.client.socket.sendall(self.command)
        return [int(stamp) for stamp in stamps]


def milliseconds(server: Running) -> list[float]:
    """Return the time from sending to receiving of each message."""
    head = request("XADD", "s", "*", "t", "x" * 16)[: -len(b"$16\r\n") - 18]
    latencies: list[float] = []
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        for number in range(CONSUMERS):
            consumer = _Consumer(stack.enter_context(server.client()), f"c{number}")
            selector.register(consumer.client.socket, selectors.EVENT_READ, consumer)
        producer = stack.enter_context(server.client()).socket
        producer.setblocking(False)
        selector.register(producer, selectors.EVENT_READ, None)
        time.sleep(0.1)
        begun = time.perf_counter_ns()
        sent, total = 0, int(RATE * SECONDS)
        while len(latencies) < total and time.perf_counter_ns() - begun < 3 * SECONDS * 1e9:
            now = time.perf_counter_ns()
            due = min(int((now - begun) * RATE / 1e9), total)
            if sent < due:
                producer.sendall(b"%b$16\r\n%016d\r\n" % (head, now) * (due - sent))
                sent = due
            for key, _mask in selector.select(0.0001):
                if key.data is None:
                    producer.recv(1 << 20)
                else:
                    stamps = key.data.take()
                    now = time.perf_counter_ns()
                    latencies += [(now - stamp) / 1e6 for stamp in stamps]
    return latencies


def measure_latency(server: Running, pending: int) -> dict[str, float]:
    """Return the percentage of messages that arrived within 2 ms, and the milliseconds of the slowest one."""
    with server.client() as client:
        if not pending:
            client.call("FLUSHALL")
            client.call("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
        elif client.call("EXISTS", "s") == 0 or client.call("XPENDING", "s", "g")[0] < pending:
            fill(server, pending)
            client.call("XGROUP", "CREATE", "s", "g", "0")
            for _ in range(pending // PAGE):
                client.bytes_of(request("XREADGROUP", "GROUP", "g", "old", "COUNT", PAGE, "STREAMS", "s", ">"))
    latencies = milliseconds(server)
    wait_until_steady(server)  # packing would compete with the next measurement
    within = sum(latency <= 2 for latency in latencies)
    return {"share": 100 * within / max(len(latencies), 1), "worst": max(latencies, default=0.0)}


def latency_rows(stack: contextlib.ExitStack) -> list[Row]:
    """Return all rows of the group."""
    rows = []
    ran = (
        f"{CONSUMERS} consumers in XREADGROUP BLOCK 0 COUNT 100, {RATE:,} messages/s for {SECONDS:g} s by a raw client"
    )
    for pending, case in ((0, "without pending entries"), (OLD, f"with {OLD:,} old pending entries")):
        ours, peer = (
            functools.partial(measure_latency, stack.enter_context(running(kind)), pending)
            for kind in ("engine", "redis-server")
        )
        rows += [
            Row("P19", f"share within 2 ms, {case}", ran, "%", 1.0, ours, peer, name="share"),
            Row("P19", f"the worst, {case}", "the same runs", "ms", 2, ours, peer, at_least=False, name="worst"),
        ]
    return rows
