"""Streams whose groups hold entries back."""

from __future__ import annotations

import time
from typing import Any

import redis

OLD = 1_700_000_000_000  # an entry's time in ms, years ago


def hold(client: redis.Redis, stream: str = "s", since: int = 0, **fields: Any) -> None:
    """Ten entries. `fast` has acknowledged all, `slow` two, `slower` one; `slow` has one pending. All are idle for 0.1
    seconds. since: time of the entries in ms, 0: their IDs are not times; fields: of each entry."""
    for n in range(10):
        client.xadd(stream, {"n": n, **fields}, id=f"{since + n + 1}-0")
    for group, count in (("fast", 10), ("slow", 2), ("slower", 1)):
        client.xgroup_create(stream, group, 0)
        client.xreadgroup(group, "spark", {stream: ">"}, count=count, noack=True)
    client.xreadgroup("slow", "spark", {stream: ">"}, count=1)
    time.sleep(0.1)
