"""A producer that numbers its entries and records the outcome of each XADD."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

from spark_streams.connector.errors import RStreamError
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connect import connect, invalidate_topology
from spark_streams.connector.wire.connection import Server
from spark_streams.operations.verify.history import Added, Outcome
from spark_streams.operations.verify.running_query import BAD, RunPlan

Send = Callable[[str, list[dict[str, Any]]], list[Any]]


class Producer:
    """Adds entries with the fields p and n to streams. It never sends the same number twice.

    send: adds entries to a stream, and returns their IDs as text, errors, or None if the outcome is unknown.
    """

    def __init__(self, send: Send, name: str = "p") -> None:
        self._sends = send
        self.name = name
        self.added: list[Added] = []
        self._numbers = itertools.count()

    def add(self, stream: str, count: int, size: int = 0) -> list[Added]:
        """Add `count` entries with a value of `size` bytes in one pipeline. Return their outcomes."""
        return self.add_fields(stream, [{"v": "x" * size} if size else {} for _ in range(count)])

    def add_fields(self, stream: str, entries: list[dict[str, Any]]) -> list[Added]:
        """Add entries with more fields. A field `n` replaces the number. Return their outcomes."""
        numbers = [next(self._numbers) for _ in entries]
        numbered = [{"p": self.name, "n": n} | more for n, more in zip(numbers, entries, strict=True)]
        new = []
        for n, reply in zip(numbers, self._sends(stream, numbered), strict=True):
            outcome = Outcome.OK if isinstance(reply, str) else Outcome.UNKNOWN if reply is None else Outcome.FAILED
            new.append(Added(stream, (self.name, n), outcome, reply if outcome is Outcome.OK else None))
        self.added += new
        return new


def sender(address: Address) -> Send:
    """Return a function that adds entries, over connections that are opened again after a failure.

    It never repeats a command: that could add an entry twice.
    """
    connections: list[Server] = []

    def send(stream: str, entries: list[dict[str, Any]]) -> list[Any]:
        commands = [("XADD", stream, "*", *itertools.chain.from_iterable(fields.items())) for fields in entries]
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


class Feed(threading.Thread):
    """A producer of a run. It adds 130 entries a second, a few of them BAD, until `stop`."""

    def __init__(self, send: Send, plan: RunPlan, number: int) -> None:
        super().__init__(daemon=True)
        self._producer, self._ending = Producer(send, f"p{number}"), threading.Event()
        self._chance, self._streams = plan.chance(f"producer {number}"), plan.streams
        self.added = self._producer.added

    def run(self) -> None:
        chance = self._chance
        while not self._ending.wait(chance.uniform(0, 0.15)):
            value = {"v": "x" * chance.choice([10, 10, 100, 2_000])}
            entries = [value | ({"n": BAD} if chance.random() < 0.02 else {}) for _ in range(chance.randint(1, 20))]
            self._producer.add_fields(chance.choice(self._streams), entries)

    def stop(self) -> None:
        """End the thread, if it runs."""
        self._ending.set()
        if self.is_alive():
            self.join()
