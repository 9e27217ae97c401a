"""Streams whose groups hold entries back."""

from __future__ import annotations

import time
from typing import Any

import redis


def hold(client: redis.Redis, stream: str = "s", **fields: Any) -> None:
    """Ten entries. `fast` has acknowledged all, `slow` two, `slower` one; `slow` has one pending. All are idle for 0.1
    seconds. fields: of each entry."""
    for n in range(10):
        client.xadd(stream, {"n": n, **fields}, id=f"{n + 1}-0")
    for group, count in (("fast", 10), ("slow", 2), ("slower", 1)):
        client.xgroup_create(stream, group, 0)
        client.xreadgroup(group, "spark", {stream: ">"}, count=count, noack=True)
    client.xreadgroup("slow", "spark", {stream: ">"}, count=1)
    time.sleep(0.1)
