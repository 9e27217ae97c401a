"""P17, P18: memory of an entry and of a pending entry."""

from __future__ import annotations

import contextlib
import functools
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


def measure(kind: str) -> dict[str, float]:
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


def rows(_stack: contextlib.ExitStack) -> list[Row]:
    """Return all rows of the group. Each side is measured once, because memory does not vary."""
    ours, peer = functools.partial(measure, "engine"), functools.partial(measure, "redis-server")
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
