"""P19: latency of messages to blocked consumers, without and with a long list of old pending entries."""

from __future__ import annotations

import contextlib
import functools
import re
import selectors
import time

from tools.bench.client import PAGE, STAMPS, RawClient, request
from tools.bench.engine import fill
from tools.bench.memory import wait_until_steady
from tools.bench.row import Row
from tools.bench.servers import Running, running

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


def measure(server: Running, pending: int) -> dict[str, float]:
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


def rows(stack: contextlib.ExitStack) -> list[Row]:
    """Return all rows of the group."""
    rows = []
    ran = (
        f"{CONSUMERS} consumers in XREADGROUP BLOCK 0 COUNT 100, {RATE:,} messages/s for {SECONDS:g} s by a raw client"
    )
    for pending, case in ((0, "without pending entries"), (OLD, f"with {OLD:,} old pending entries")):
        ours, peer = (
            functools.partial(measure, stack.enter_context(running(kind)), pending)
            for kind in ("engine", "redis-server")
        )
        rows += [
            Row("P19", f"share within 2 ms, {case}", ran, "%", 1.0, ours, peer, name="share"),
            Row("P19", f"the worst, {case}", "the same runs", "ms", 2, ours, peer, at_least=False, name="worst"),
        ]
    return rows
