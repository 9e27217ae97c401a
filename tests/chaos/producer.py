"""A producer that numbers its entries and keeps what it knows of each XADD."""

from __future__ import annotations

import itertools
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.chaos.history import Added, Outcome


class Producer:
    """Adds entries with (p, n) and anything else to streams of one server. It never sends the same number twice.

    patience: seconds to wait for a reply before its outcome is unknown.
    """

    def __init__(self, url: str, name: str = "p", patience: float | None = None) -> None:
        # A retry inside the client would hide an unknown outcome, and send a number twice.
        self.client: Any = redis.Redis.from_url(
            url, protocol=2, decode_responses=True, retry=Retry(NoBackoff(), 0), socket_timeout=patience
        )
        self.name = name
        self.added: list[Added] = []
        self._numbers = itertools.count()

    def add(self, stream: str, count: int, size: int = 0) -> list[Added]:
        """Add so many entries in one pipeline, each with a value of `size` bytes; what became of them."""
        numbers = [next(self._numbers) for _ in range(count)]
        pipe = self.client.pipeline(transaction=False)
        for n in numbers:
            pipe.xadd(stream, {"p": self.name, "n": n} | ({"v": "x" * size} if size else {}))
        try:
            replies = pipe.execute(raise_on_error=False)
        except redis.RedisError:
            replies = [None] * count  # sent, or not, or in part
        new = []
        for n, reply in zip(numbers, replies, strict=True):
            outcome = Outcome.OK if isinstance(reply, str) else Outcome.UNKNOWN if reply is None else Outcome.FAILED
            new.append(Added(stream, (self.name, n), outcome, reply if outcome is Outcome.OK else None))
        self.added += new
        return new
