"""A producer that numbers its entries and records the outcome of each XADD."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from itertools import chain
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from spark_streams.errors import RStreamError
from spark_streams.wire.address.address import Address
from spark_streams.wire.connect import connect, invalidate_topology
from spark_streams.wire.connection.server import Server
from tools.chaos.clients import client_of, is_several
from tools.chaos.history import Added, Outcome


class Producer:
    """Adds entries with the fields p and n to streams of one server. It never sends the same number twice.

    patience: seconds to wait for a reply, before the outcome is unknown.
    """

    def __init__(self, url: str, name: str = "p", patience: float | None = None) -> None:
        # A retry inside the client would hide an unknown outcome, and send a number twice. With several servers
        # redis-py always retries, so numbers are sent by _to_several instead.
        once = {} if is_several(url) else {"retry": Retry(NoBackoff(), 0)}
        self.client: Any = client_of(url, socket_timeout=patience, **once)
        self._sends = _to_several(url) if is_several(url) else self._send
        self.name = name
        self.added: list[Added] = []
        self._numbers = itertools.count()

    def add(self, stream: str, count: int, size: int = 0) -> list[Added]:
        """Add `count` entries with a value of `size` bytes in one pipeline. Return their outcomes."""
        numbers = [next(self._numbers) for _ in range(count)]
        replies = self._sends(stream, [{"p": self.name, "n": n} | ({"v": "x" * size} if size else {}) for n in numbers])
        new = []
        for n, reply in zip(numbers, replies, strict=True):
            outcome = Outcome.OK if isinstance(reply, str) else Outcome.UNKNOWN if reply is None else Outcome.FAILED
            new.append(Added(stream, (self.name, n), outcome, reply if outcome is Outcome.OK else None))
        self.added += new
        return new

    def _send(self, stream: str, entries: list[dict[str, Any]]) -> list[Any]:
        """Return the replies. None: the outcome of the entry is unknown."""
        pipe = self.client.pipeline(transaction=False)
        for fields in entries:
            pipe.xadd(stream, fields)
        try:
            return list(pipe.execute(raise_on_error=False))
        except redis.RedisError:
            return [None] * len(entries)


def _to_several(url: str) -> Callable[[str, list[dict[str, Any]]], list[Any]]:
    """Return `_send` over connections to several servers, which are opened again after a failure."""
    address = Address.parse(url)
    connections: list[Server] = []

    def send(stream: str, entries: list[dict[str, Any]]) -> list[Any]:
        commands = [("XADD", stream, "*", *chain.from_iterable(fields.items())) for fields in entries]
        try:
            if not connections:
                connections.append(connect(address))
            return [
                reply.decode() if isinstance(reply, bytes) else reply for reply in connections[0].pipeline(commands)
            ]
        except RStreamError:
            invalidate_topology(address)
            for server in connections:
                server.close()
            connections.clear()
            return [None] * len(entries)

    return send
