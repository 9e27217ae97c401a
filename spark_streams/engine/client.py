"""A client as commands see it: name, protocol, database, transaction, reply mode, and the wait of a blocked one.

What the engine keeps for a client beside its connection counts for maxmemory (`kept_bytes`): names, queued commands,
watched keys, and the keys that it waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

from spark_streams.engine.resp.wire_replies import CommandError, Reply, error

if TYPE_CHECKING:
    from spark_streams.engine.resp.request_parser import Request
    from spark_streams.engine.store.keyspace import Database, Ready


REPLY_ON, REPLY_OFF, REPLY_SKIP_NEXT, REPLY_SKIPPING = range(4)
# Approximate bytes of memory in addition to those of the text.
_PER_ARGUMENT, _PER_KEY = 50, 450
_SPARE_MOMENTS = 64  # moments of clients that no longer wait, which are kept beside two for each that does


class Client:
    """State of one connection."""

    __slots__ = ("address", "authenticated", "broken", "closing", "created", "db", "dirty", "id", "laddr",
                 "last_command", "last_seen", "lib_name", "lib_ver", "name", "queue", "queued_bytes",
                 "refusals", "reply_mode", "resp", "waiter", "watched_bytes", "watching")  # fmt: skip

    def __init__(self, identity: int, db: Database, address: str, laddr: str, now: int) -> None:
        self.id = identity
        self.db = db
        self.address = address
        self.laddr = laddr
        self.created = now  # Unix milliseconds
        self.last_seen = now
        self.last_command = b""
        self.name = b""
        self.lib_name = b""
        self.lib_ver = b""
        self.resp = 2
        self.reply_mode = REPLY_ON
        self.queue: list[Request] | None = None  # commands since MULTI
        self.queued_bytes = 0  # approximate memory of the queue
        self.broken = False  # a queued command was refused: EXEC aborts
        self.dirty = False  # a watched key changed: EXEC returns nil
        self.watching: list[tuple[Database, bytes]] = []
        self.watched_bytes = 0  # approximate memory of the watched keys
        self.waiter: Waiter | None = None  # set while blocked
        self.authenticated = True
        self.refusals = 0  # commands refused before it logged in
        self.closing = False  # close the connection when its output is written

    @property
    def is_local(self) -> bool:
        """Whether it is connected by a Unix socket, whose ends have one name, or from a loopback address."""
        return self.address == self.laddr or self.address.startswith(("127.", "[::1]"))

    @property
    def kept_bytes(self) -> int:
        """Approximate bytes of memory that the engine keeps for this client beside its connection."""
        names = len(self.name) + len(self.lib_name) + len(self.lib_ver)
        awaited = 0 if self.waiter is None else self.waiter.bytes
        return names + self.queued_bytes + self.watched_bytes + awaited

    def enqueue(self, request: Request) -> int:
        """Queue a request of a transaction (`queue` is not None). Return the bytes of memory that it takes."""
        assert self.queue is not None
        self.queue.append(request)
        if isinstance(request, list):
            size = sum(map(len, request)) + _PER_ARGUMENT * len(request)
        else:
            size = 2 * len(request.raw) + _PER_ARGUMENT * len(request.sections)
        self.queued_bytes += size
        return size

    def watch(self, db: Database, key: bytes) -> int:
        """Watch a key. Return the bytes of memory that it takes."""
        watchers = db.watched.setdefault(key, set())
        if self in watchers:
            return 0
        watchers.add(self)
        self.watching.append((db, key))
        size = len(key) + _PER_KEY
        self.watched_bytes += size
        return size

    def unwatch(self) -> None:
        """Forget all watched keys."""
        for db, key in self.watching:
            clients = db.watched.get(key)
            if clients is not None:
                clients.discard(self)
                if not clients:
                    del db.watched[key]
        self.watching.clear()
        self.watched_bytes = 0
        self.dirty = False

    def leave_transaction(self) -> None:
        """Reset the transaction, as after EXEC or DISCARD."""
        self.queue = None
        self.queued_bytes = 0
        self.broken = False
        self.unwatch()


class Waiter:
    """A blocked command. `attempt` returns its reply, or None if there is none yet; it may raise CommandError."""

    __slots__ = ("attempt", "bytes", "client", "db", "deadline", "find_retry_time", "keys", "needs_key", "retry_at",
                 "timeout_reply")  # fmt: skip

    def __init__(
        self, client: Client, db: Database, keys: Sequence[bytes], deadline: int | None,
        attempt: Callable[[], Reply | None], timeout_reply: Reply, find_retry_time: Callable[[], int] | None = None,
        needs_key: bool = False,
    ) -> None:  # fmt: skip
        self.client = client
        self.db = db
        self.keys = keys
        self.bytes = sum(map(len, keys)) + _PER_KEY * len(keys)  # approximate memory of the keys
        self.deadline = deadline  # Unix milliseconds; None: no timeout
        self.attempt = attempt
        self.timeout_reply = timeout_reply  # the reply after the deadline
        self.find_retry_time = find_retry_time  # when to retry although no key has changed, Unix milliseconds
        self.retry_at = find_retry_time() if find_retry_time is not None else None
        self.needs_key = needs_key  # the command fails if its key is deleted (XREADGROUP)

    def deadlines(self) -> list[int]:
        """Return the waiter's deadline and retry time, as far as it has them, in Unix milliseconds."""
        return [time for time in (self.deadline, self.retry_at) if time is not None]


# Clients that wait for a stream, served in the order of their arrival.
#
# A waiter is entered in the `waiting` map of its database, under each of its keys. A command that changes a key puts
# the key on `ready`. After the command (after EXEC, for a transaction) the waiters of the ready keys are attempted
# again, in order. Waiters with a reply are removed. Source: Redis' `blocked.c`.


class Waiters:
    """All blocked clients of the engine."""

    def __init__(self, deliver: Callable[[Client, Reply], None]) -> None:
        """`deliver` sends the reply of a client that is no longer blocked."""
        self._deliver = deliver
        self._timed: set[Waiter] = set()
        # A heap of all deadlines and retry times, with a number in order of arrival. Those that no longer hold stay in
        # it until they are the first, or are too many: a turn looks at the first one only, however many clients wait.
        self._moments: list[tuple[int, int, Waiter]] = []
        self._numbers = count()
        self.count = 0

    def add(self, waiter: Waiter) -> None:
        """Block the waiter's client."""
        waiter.client.waiter = waiter
        for key in waiter.keys:
            waiter.db.waiting.setdefault(key, {})[waiter] = None
        if moments := waiter.deadlines():
            self._timed.add(waiter)
        for moment in moments:
            self._note(moment, waiter)
        self.count += 1

    def _note(self, moment: int, waiter: Waiter) -> None:
        heappush(self._moments, (moment, next(self._numbers), waiter))
        self._drop_past()

    def _drop_past(self) -> None:
        """Drop the moments that no longer hold, if they are too many. Of a waiter at most two are left."""
        if len(self._moments) > 4 * len(self._timed) + _SPARE_MOMENTS:
            held = {(moment, waiter): number for moment, number, waiter in self._moments if self._holds(moment, waiter)}
            self._moments = [(moment, number, waiter) for (moment, waiter), number in held.items()]
            heapify(self._moments)

    def _holds(self, moment: int, waiter: Waiter) -> bool:
        return waiter in self._timed and moment in (waiter.deadline, waiter.retry_at)

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
        self._drop_past()
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
                self._note(waiter.retry_at, waiter)
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
        while self._moments and not self._holds(self._moments[0][0], self._moments[0][2]):
            heappop(self._moments)
        return self._moments[0][0] if self._moments else None

    def expire(self, now: int) -> None:
        """Attempt waiters whose retry time has come; send the timeout reply to those whose deadline has passed."""
        due: dict[Waiter, None] = {}
        while self._moments and self._moments[0][0] <= now:
            due[heappop(self._moments)[2]] = None
        for waiter in due:
            if waiter in self._timed and waiter.retry_at is not None and waiter.retry_at <= now:
                self._try(waiter)
        for waiter in due:
            if waiter in self._timed and waiter.deadline is not None and waiter.deadline <= now:
                self.finish(waiter, waiter.timeout_reply)
