"""P19: latency of messages to blocked consumers, without and with a long list of old pending entries."""

from __future__ import annotations

import contextlib
import functools
import re
import selectors
import time
from collections.abc import Callable

from tools.bench.client import RawClient, request
from tools.bench.engine import fill
from tools.bench.memory import wait_until_steady
from tools.bench.row import Row
from tools.bench.servers import Running, running

CONSUMERS = 10
RATE = 10_000  # messages per second
SECONDS = 4.0
OLD = 1_000_000
_STAMPS = re.compile(rb"\$1\r\nt\r\n\$16\r\n([0-9]{16})\r\n")
_BOUNDS = (0.25, 0.5, 1, 2, 5, 10, 50)  # milliseconds


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
        stamps = _STAMPS.findall(self.data)
        count = re.match(rb"\*1\r\n\*2\r\n\$1\r\ns\r\n\*([0-9]+)\r\n", self.data)
        if count is None or len(stamps) < int(count[1]):
            return []
        self.data = b""
        self.client.socket.sendall(self.command)
        return [int(stamp) for stamp in stamps]


def milliseconds(server: Running) -> tuple[list[float], float]:
    """Return the time from sending to receiving of each message, and the rate that this client reached."""
    selector = selectors.DefaultSelector()
    consumers = [_Consumer(server.client(), f"c{number}") for number in range(CONSUMERS)]
    for consumer in consumers:
        selector.register(consumer.client.socket, selectors.EVENT_READ, consumer)
    producer = server.client()
    producer.socket.setblocking(False)
    selector.register(producer.socket, selectors.EVENT_READ, None)
    head = request("XADD", "s", "*", "t", "x" * 16)[: -len(b"$16\r\n") - 18]
    latencies: list[float] = []
    time.sleep(0.1)
    begun = time.perf_counter_ns()
    sent, total = 0, int(RATE * SECONDS)
    while len(latencies) < total and time.perf_counter_ns() - begun < 3 * SECONDS * 1e9:
        now = time.perf_counter_ns()
        due = min(int((now - begun) * RATE / 1e9), total)
        if sent < due:
            producer.socket.sendall(b"%b$16\r\n%016d\r\n" % (head, now) * (due - sent))
            sent = due
        for key, _mask in selector.select(0.0001):
            if key.data is None:
                producer.socket.recv(1 << 20)
            else:
                stamps = key.data.take()
                now = time.perf_counter_ns()
                latencies += [(now - stamp) / 1e6 for stamp in stamps]
    rate = len(latencies) / ((time.perf_counter_ns() - begun) / 1e9)
    for consumer in consumers:
        consumer.client.close()
    producer.close()
    selector.close()
    return latencies, rate


class _Side:
    """One server, and its latencies in all rounds."""

    def __init__(self, server: Running) -> None:
        self.server = server
        self.latencies: list[float] = []
        self.worst = 0.0  # milliseconds, in the last round
        self.rates: list[float] = []

    def share(self, pending: int) -> float:
        """Return the percentage of messages that arrived within 2 ms."""
        client = self.server.client()
        if pending:
            if client.call("EXISTS", "s") == 0 or client.call("XPENDING", "s", "g")[0] < pending:
                fill(self.server, pending)
                client.call("XGROUP", "CREATE", "s", "g", "0")
                for _ in range(pending // 1000):
                    client.bytes_of(request("XREADGROUP", "GROUP", "g", "old", "COUNT", 1000, "STREAMS", "s", ">"))
        else:
            client.call("FLUSHALL")
            client.call("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
        client.close()
        latencies, rate = milliseconds(self.server)
        self.worst = max(latencies, default=0.0)
        self.latencies += latencies
        self.rates.append(rate)
        if self.server.kind == "engine":
            wait_until_steady(self.server)  # packing would compete with the next measurement
        return 100 * sum(latency <= 2 for latency in latencies) / max(len(latencies), 1)

    def histogram(self) -> str:
        """Return the shares as `≤0.25 ms 31.0 %  …  worst 3.1 ms`."""
        total = max(len(self.latencies), 1)
        shares = [
            f"≤{bound:g} ms {100 * sum(latency <= bound for latency in self.latencies) / total:.1f} %"
            for bound in _BOUNDS
        ]
        return "  ".join([*shares, f"worst {max(self.latencies, default=0):.1f} ms"])


def rows(stack: contextlib.ExitStack) -> list[Row]:
    """Return all rows of the group."""
    rows = []
    for pending, case in ((0, "without pending entries"), (OLD, f"with {OLD:,} old pending entries")):
        sides = [_Side(stack.enter_context(running(kind))) for kind in ("engine", "redis-server")]
        rows.append(_row(pending, case, *sides))
        ours, peer = sides
        rows.append(
            Row("P19", f"the worst, {case}", "the same runs", "ms", 2, functools.partial(_worst, ours),
                functools.partial(_worst, peer), at_least=False)
        )  # fmt: skip
    return rows


def _worst(side: _Side) -> float:
    return side.worst


def _row(pending: int, case: str, ours: _Side, peer: _Side) -> Row:
    def measure(side: _Side) -> Callable[[], float]:
        def share() -> float:
            value = side.share(pending)
            rate = min(ours.rates + peer.rates)
            row.ran = (
                f"{CONSUMERS} consumers in XREADGROUP BLOCK 0 COUNT 100, {RATE:,} messages/s for {SECONDS:g} s, one "
                f"raw client that reached {rate:,.0f}/s\n        engine       {ours.histogram()}"
                f"\n        redis-server {peer.histogram()}"
            )
            return value

        return share

    row = Row("P19", f"share within 2 ms, {case}", "", "%", 1.0, measure(ours), measure(peer))
    return row
