"""P17, P18: memory of an entry and of a pending entry."""

from __future__ import annotations

import contextlib
import time

from tools.bench.client import PAGE, request
from tools.bench.engine import fill
from tools.bench.row import Row
from tools.bench.servers import Running, running

ENTRIES = 1_000_000
_IDLE = 30.0  # seconds that the engine may take to pack cold data
# Groups that read the stream before the measurement, and groups that are measured. A first read takes 2 MB of working
# memory (also with NOACK), and the lists of the first ten groups, 0.3 MB each, fit into memory that packing has freed.
_GROUPS = {"engine": (15, 10), "redis-server": (0, 1)}


class _Measured:
    """A new server, filled with entries that are then read through a group. Figures are bytes per entry."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.empty = self.hot = self.cold = self.pending = 0.0

    def run(self) -> None:
        with running(self._kind) as server:
            self.empty = server.resident() / 1e6
            before = self._used(server)
            fill(server, ENTRIES)
            self.hot = (self._used(server) - before) / ENTRIES
            if self._kind == "engine":
                wait_until_steady(server)
            self.cold = (self._used(server) - before) / ENTRIES
            before_groups, groups = _GROUPS[self._kind]
            self._deliver(server, range(before_groups))
            after = self._allocated(server)
            self._deliver(server, range(before_groups, before_groups + groups))
            self.pending = (self._allocated(server) - after) / (groups * ENTRIES)

    def _deliver(self, server: Running, groups: range) -> None:
        """Let each of these new groups read the whole stream."""
        client = server.client()
        for number in groups:
            client.call("XGROUP", "CREATE", "s", number, "0")
            for _ in range(ENTRIES // PAGE):
                client.bytes_of(request("XREADGROUP", "GROUP", number, "c", "COUNT", PAGE, "STREAMS", "s", ">"))
        client.close()
        if self._kind == "engine":
            wait_until_steady(server)

    def _used(self, server: Running) -> float:
        if self._kind == "engine":
            return server.resident()
        client = server.client()
        used = client.call("MEMORY", "USAGE", "s", "SAMPLES", 0)
        client.close()
        return float(used or 0)

    def _allocated(self, server: Running) -> float:
        """Return bytes, as `_used`. For redis-server from used_memory: its MEMORY USAGE only estimates groups."""
        if self._kind == "engine":
            return server.resident()
        client = server.client()
        info = client.call("INFO", "memory")
        client.close()
        return float(info.split(b"used_memory:")[1].split(b"\r\n")[0])


def wait_until_steady(server: Running) -> None:
    """Wait until the engine has packed its cold data."""
    deadline = time.monotonic() + _IDLE
    last = server.resident()
    same = 0
    while time.monotonic() < deadline and same < 4:
        time.sleep(0.5)
        now = server.resident()
        same = same + 1 if abs(now - last) < 1 << 20 else 0
        last = now


def rows(_stack: contextlib.ExitStack) -> list[Row]:
    """Return all rows of the group. Each side is measured once, because memory does not vary."""
    ours, peer = _Measured("engine"), _Measured("redis-server")

    def first() -> float:
        ours.run()
        return ours.cold

    def first_of_peer() -> float:
        peer.run()
        return peer.cold

    ran = f"{ENTRIES:,} entries of two fields of 12 digits; private memory of the engine, MEMORY USAGE of redis-server"
    return [
        Row("P17", "bytes per entry, cold", ran + "; after some seconds without commands", "B", 1.0, first,
            first_of_peer, at_least=False, rounds=1),
        Row("P17", "bytes per entry, hot", ran, "B", 1.8, lambda: ours.hot, lambda: peer.cold,
            at_least=False, rounds=1),
        Row("P17", "an engine that holds nothing", "private memory", "MB", 16, lambda: ours.empty,
            at_least=False, rounds=1),
        Row("P18", "bytes per pending entry", f"{ENTRIES:,} delivered in thousands to each of ten groups", "B", 1.0,
            lambda: ours.pending, at_least=False, rounds=1),
        Row("P18", "against redis-server", f"{ENTRIES:,} delivered in thousands", "B", None, lambda: ours.pending,
            lambda: peer.pending, at_least=False, rounds=1),
    ]  # fmt: skip
