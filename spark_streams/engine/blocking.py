"""Clients that wait for a stream, served in the order of their arrival.

A waiter is entered in the `waiting` map of its database, under each of its keys. A command that changes a key puts the
key on `ready`. After the command (after EXEC, for a transaction) the waiters of the ready keys are attempted again, in
order. Waiters with a reply are removed. Source: Redis' `blocked.c`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from spark_streams.engine.client import Waiter
from spark_streams.engine.resp.replies import CommandError, Reply, error

if TYPE_CHECKING:
    from spark_streams.engine.client import Client
    from spark_streams.engine.store.keyspace import Ready


class Waiters:
    """All blocked clients of the engine."""

    def __init__(self, deliver: Callable[[Client, Reply], None]) -> None:
        """`deliver` sends the reply of a client that is no longer blocked."""
        self._deliver = deliver
        self._timed: set[Waiter] = set()
        self.count = 0

    def add(self, waiter: Waiter) -> None:
        """Block the waiter's client."""
        waiter.client.waiter = waiter
        for key in waiter.keys:
            waiter.db.waiting.setdefault(key, {})[waiter] = None
        if waiter.deadlines():
            self._timed.add(waiter)
        self.count += 1

    def remove(self, waiter: Waiter) -> None:
        """Unblock without a reply, because the client has disconnected."""
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

    def serve(self, ready: Ready) -> None:
        """Attempt the commands of all waiters for ready keys again, and for those that become ready by that.

        An attempt looks at all keys of its waiter: one is enough, however many of its keys are ready.
        """
        while ready:
            waiters = dict.fromkeys(waiter for db, key in ready for waiter in db.waiting.get(key, ()))
            ready.clear()
            for waiter in waiters:
                if isinstance(waiter, Waiter) and waiter.client.waiter is waiter:
                    self._try(waiter)

    def _try(self, waiter: Waiter) -> None:
        try:
            reply = waiter.attempt()
            if reply is None and waiter.find_retry_time is not None:
                waiter.retry_at = waiter.find_retry_time()
        except CommandError as failure:
            reply = error(failure.text)
        if reply is not None:
            self.finish(waiter, reply)

    @property
    def timed(self) -> int:
        """Number of waiters with a deadline or a retry time."""
        return len(self._timed)

    def next_deadline(self) -> int | None:
        """Return the first deadline or retry time of all waiters, in Unix milliseconds; None if there is none."""
        return min((time for waiter in self._timed for time in waiter.deadlines()), default=None)

    def expire(self, now: int) -> None:
        """Attempt waiters whose retry time has come; send the timeout reply to those whose deadline has passed."""
        for waiter in [waiter for waiter in self._timed if waiter.retry_at is not None and waiter.retry_at <= now]:
            if waiter.client.waiter is waiter:
                self._try(waiter)
        due = [waiter for waiter in self._timed if waiter.deadline is not None and waiter.deadline <= now]
        for waiter in sorted(due, key=lambda w: w.deadline or 0):
            self.finish(waiter, waiter.timeout_reply)
