"""A relay to a server, with one defect: it also does what a broken server, source or sink would do.

with Defective(server.url, "a lost chunk") as relay:
    …                       a query through relay.url
    relay.done              how often the defect has happened
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable

import redis

from spark_streams.operations.verify.relay import READ, UP, Relay, reset

TIMES = 3  # each defect
_SOON = 0.02  # seconds until the server has carried out a request that the relay has passed on


def early_xack(client: redis.Redis, prefix: str) -> bool:
    """Acknowledge entries as soon as the group has them."""
    group = prefix.partition(":")[0]
    for stream in (f"{prefix}:in:0", f"{prefix}:in:1"):
        with contextlib.suppress(redis.ResponseError):  # there is no group yet
            pending = [one["message_id"] for one in client.xpending_range(stream, group, "-", "+", 100)]
            if pending and client.xack(stream, group, *pending[-5:]):
                return True
    return False


def lost_chunk(client: redis.Redis, prefix: str) -> bool:
    """Lose the last rows of the sink."""
    rows = client.xrevrange(f"{prefix}:out", count=10)
    return bool(rows) and client.xdel(f"{prefix}:out", *(row_id for row_id, _ in rows)) > 0


def chunk_twice(client: redis.Redis, prefix: str) -> bool:
    """Write the last rows of the sink again."""
    rows = client.xrevrange(f"{prefix}:out", count=10)
    return bool([client.xadd(f"{prefix}:out", fields) for _, fields in reversed(rows)])


def exchanged(client: redis.Redis, prefix: str) -> bool:
    """Exchange the last two rows of one input stream."""
    rows = [row for row in client.xrevrange(f"{prefix}:out", count=20) if row[1]["source"].endswith(":0")][:2]
    if len(rows) == 2:
        client.xdel(f"{prefix}:out", *(row_id for row_id, _ in rows))
        for _, fields in rows:
            client.xadd(f"{prefix}:out", fields)
    return len(rows) == 2


def lost_dead_letter(client: redis.Redis, prefix: str) -> bool:
    """Lose the last dead letter."""
    letters = client.xrevrange(f"{prefix}:dead", count=1)
    return bool(letters) and client.xdel(f"{prefix}:dead", letters[0][0]) > 0


# By name: the defect, the request after which it happens, and the name of the fault in the verdict.
DEFECTS: dict[str, tuple[Callable[[redis.Redis, str], bool], bytes, str]] = {
    "an early XACK": (early_xack, b"XREADGROUP", "acknowledged early"),
    "a lost chunk": (lost_chunk, b"EXEC", "lost"),
    "a chunk twice": (chunk_twice, b"EXEC", "twice"),
    "two entries exchanged": (exchanged, b"EXEC", "out of order"),
    "a dead letter lost": (lost_dead_letter, b":dead", "lost"),
}


class Defective(Relay):
    """A relay with a defect of DEFECTS, which happens TIMES times."""

    def __init__(self, url: str, defect: str) -> None:
        super().__init__(url)
        self._act, self._after, _ = DEFECTS[defect]
        self._client = redis.Redis.from_url(url, protocol=2, decode_responses=True)
        self._acting = threading.Lock()
        self._last = 0.0
        self.done = 0
        self.url = f"redis://127.0.0.1:{self.port}/0"

    def _pass_on(self, source: socket.socket, target: socket.socket, direction: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(READ):
                target.sendall(data)
                if direction == UP and self._after in data:
                    with self._acting:
                        self._happen()
        reset(source)
        reset(target)

    def _happen(self) -> None:
        if self.done == TIMES or time.monotonic() < self._last + 1:
            return
        time.sleep(_SOON)
        for key in self._client.scan_iter("rstream-verify-*:in:0", count=1000):
            if self._act(self._client, key.removesuffix(":in:0")):
                self.done, self._last = self.done + 1, time.monotonic()
