"""Clients that wait for a stream: served first come, first served.

A waiter stands in the `waiting` map of its database under each of its keys, in order of arrival. A command that changes
a key puts the key on `ready`; after the command (after EXEC, for a transaction) the ready keys' waiters try again in
order, and those that get something leave. Source: Redis' `blocked.c`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from spark_streams.engine.client import Waiter
from spark_streams.engine.resp.replies import CommandError, Reply, error

if TYPE_CHECKING:
    from spark_streams.engine.client import Client
    from spark_streams.engine.store.keyspace import Database


class Waiters:
    """All blocked clients of the engine."""

    def __init__(self, deliver: Callable[[Client, Reply], None]) -> None:
        """`deliver` is called for each that has its reply."""
        self._deliver = deliver
        self._timed: set[Waiter] = set()
        self.count = 0

    def add(self, waiter: Waiter) -> None:
        """Block the waiter's client."""
        waiter.client.waiter = waiter
        for key in waiter.keys:
            waiter.db.waiting.setdefault(key, {})[waiter] = None
        if waiter.times():
            self._timed.add(waiter)
        self.count += 1

    def remove(self, waiter: Waiter) -> None:
        """Unblock without a reply (its client went away)."""
        waiter.client.waiter = None
        for key in set(waiter.keys):
            queue = waiter.db.waiting.get(key)
            if queue is not None:
                queue.pop(waiter, None)
                if not queue:
                    del waiter.db.waiting[key]
        self._timed.discard(waiter)
        self.count -= 1

    def finish(self, waiter: Waiter, reply: Reply) -> None:
        """Unblock with this reply."""
        self.remove(waiter)
        self._deliver(waiter.client, reply)

    def serve(self, db: Database) -> None:
        """Let the waiters of all ready keys try again."""
        while db.ready:
            keys, db.ready = list(db.ready), {}
            for key in keys:
                for waiter in list(db.waiting.get(key, ())):
                    if isinstance(waiter, Waiter) and waiter.client.waiter is waiter:
                        self._try(waiter)

    def _try(self, waiter: Waiter) -> None:
        try:
            reply = waiter.attempt()
            if reply is None and waiter.again is not None:
                waiter.again_at = waiter.again()
        except CommandError as failure:
            reply = error(failure.text)
        if reply is not None:
            self.finish(waiter, reply)

    @property
    def timed(self) -> int:
        """How many do not wait for ever."""
        return len(self._timed)

    def next_deadline(self) -> int | None:
        """When the first waiter's time is up, or it is to be tried again."""
        return min((time for waiter in self._timed for time in waiter.times()), default=None)

    def expire(self, now: int) -> None:
        """Try again those whose entries have become old enough; answer those whose time is up."""
        for waiter in [waiter for waiter in self._timed if waiter.again_at is not None and waiter.again_at <= now]:
            if waiter.client.waiter is waiter:
                self._try(waiter)
        due = [waiter for waiter in self._timed if waiter.deadline is not None and waiter.deadline <= now]
        for waiter in sorted(due, key=lambda w: w.deadline or 0):
            self.finish(waiter, waiter.nothing)
