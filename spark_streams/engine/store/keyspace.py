"""Databases: numbered maps from keys to values, with expiry, and the memory that they take.

    values   key → bytes (string) | dict (hash) | set | list | Stream     the Python type is the Redis type
    expires  key → Unix milliseconds
    watched  key → clients that WATCH it           changed keys mark them dirty
    waiting  key → waiters, in order of arrival    changed keys are put on `ready`, and served after the command

All databases share `ready`, because a command may change a key of another database than its client's (COPY, MOVE).

The clock is passed in: an expired key is removed when it is next accessed.

`changes` counts as Redis does for rdb_changes_since_last_save: most commands count once, others once for each element
that they add or remove; those pass the number. An expired key is no change.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias, TypeVar

from spark_streams.engine.resp.wire_replies import CommandError
from spark_streams.engine.store.stream import StoredStream

Value: TypeAlias = bytes | dict[bytes, bytes] | set[bytes] | list[bytes] | StoredStream
T = TypeVar("T", bytes, dict[bytes, bytes], set[bytes], list[bytes], StoredStream)
V = TypeVar("V", bound=Value)

TYPE_NAMES: dict[type, str] = {bytes: "string", dict: "hash", set: "set", list: "list", StoredStream: "stream"}


class Watcher(Protocol):
    """A client that watches a key (WATCH): `dirty` after a change."""

    dirty: bool


class Waiting(Protocol):
    """A waiter for a key, in order of arrival (blocking.py serves them)."""

    keys: Sequence[bytes]
    needs_key: bool


# Changed keys that clients wait for, in the order of the changes.
Ready: TypeAlias = "dict[tuple[Database, bytes], None]"


def wrong_type() -> CommandError:
    """Return the error for a value of another type."""
    return CommandError("WRONGTYPE Operation against a key holding the wrong kind of value")


def existing(value: V | None) -> V:
    """Return the value of a key that must exist. Raises CommandError."""
    if value is None:
        raise CommandError("ERR no such key")
    return value


class Database:
    """One numbered database."""

    __slots__ = ("changes", "clock", "expired", "expires", "number", "ready", "values", "waiting", "watched")

    def __init__(self, number: int, clock: Callable[[], int], ready: Ready) -> None:
        self.number = number
        self.ready = ready
        self.clock = clock
        self.values: dict[bytes, Value] = {}
        self.expires: dict[bytes, int] = {}
        self.watched: dict[bytes, set[Watcher]] = {}
        self.waiting: dict[bytes, dict[Waiting, None]] = {}
        self.changes = 0
        self.expired: Callable[[Database, bytes], None] = lambda db, key: None  # called for every key that expires

    def get(self, key: bytes) -> Value | None:
        """Return the value, or None. Removes an expired key."""
        if self.expires:
            self.expire_if_due(key)
        return self.values.get(key)

    def get_as(self, key: bytes, kind: type[T]) -> T | None:
        """Return the value if it has this type, None if there is no key. Raises WRONGTYPE."""
        value = self.get(key)
        if value is None or type(value) is kind:
            return value
        raise wrong_type()

    def stream(self, key: bytes) -> StoredStream | None:
        """Return a stream, None if there is no key. Raises WRONGTYPE."""
        if self.expires:
            self.expire_if_due(key)
        value = self.values.get(key)
        if value is None or type(value) is StoredStream:
            return value
        raise wrong_type()

    def expire_if_due(self, key: bytes) -> None:
        """Remove the key if it has expired."""
        due = self.expires.get(key)
        if due is not None and due <= self.clock():
            self.remove(key, changes=0)
            self.expired(self, key)

    def drop_expired(self) -> None:
        """Remove all expired keys."""
        now = self.clock()
        for key in [key for key, due in self.expires.items() if due <= now]:
            self.remove(key, changes=0)
            self.expired(self, key)

    def set(self, key: bytes, value: Value, keep_ttl: bool = False, changes: int = 1) -> None:
        """Store a value and notify watchers and waiters."""
        self.values[key] = value
        if not keep_ttl:
            self.expires.pop(key, None)
        self.touch(key, changes)

    def remove(self, key: bytes, changes: int = 1) -> bool:
        """Remove a key and notify watchers and waiters."""
        if self.values.pop(key, None) is None:
            return False
        self.expires.pop(key, None)
        self.touch(key, changes)
        return True

    def remove_if_empty(self, key: bytes, changes: int) -> None:
        """Record members that were removed from a hash, set or list; delete the key if it is empty."""
        if self.values[key]:
            self.touch(key, changes)
        else:
            self.remove(key, changes)

    def touch(self, key: bytes, changes: int = 1) -> None:
        """Record a change of this key's value, and notify watchers and waiters."""
        if self.watched and key in self.watched:
            for client in self.watched[key]:
                client.dirty = True
        self.touch_groups(key, changes)

    def touch_groups(self, key: bytes, changes: int = 1) -> None:
        """Record a change of groups or counters of a stream, which for WATCH, as in Redis, is no change of the key."""
        self.changes += changes
        if self.waiting and key in self.waiting:
            self.ready[self, key] = None

    def clear(self) -> None:
        """Remove all keys (FLUSHDB)."""
        for key in list(self.watched):
            if key in self.values:
                self.touch(key, 0)
        for key in self.waiting:
            if key in self.values:
                self.ready[self, key] = None
        self.changes += len(self.values)
        self.values.clear()
        self.expires.clear()

    def keys(self) -> Iterable[bytes]:
        """Return all keys that have not expired."""
        if self.expires:
            self.drop_expired()
        return self.values.keys()


# The memory that the data takes, and whether another write is allowed (maxmemory).
#
# The resident size of a Python process says little about the data: memory freed by DEL stays with the allocator for a
# while. So the data is measured, node by node and value by value, as rarely as possible:
#
#     |<----- measured ----->|<-- since -->|                  |
#     values, clients, when    bytes of the   available bytes   maxmemory
#     last measured            writes since
#
# Connections grow without a write (unfinished requests, unread replies): they are measured once a second, which is
# fast.
#
# The process before any data (`base`: the interpreter and this package) is not included: with `--maxmemory 10mb` the
# data may take that much. `since` is an upper bound, so nothing needs measuring while it stays below maxmemory. Above,
# the data is measured again, but for only a small part of the time; between two measurements the bound decides.


_PER_ARGUMENT = 120  # most bytes that an argument takes in addition to its own
_PER_KEY = 200  # bytes of a key's entries in dictionaries, and its own header
_SHARE = 20  # measuring takes at most one part in this many of the time


class MemoryGauge:
    """Measures the data of databases. `buffers` returns the bytes of connections and their clients."""

    def __init__(self, databases: Sequence[Database]) -> None:
        self._databases = databases
        self.buffers: Callable[[], int] = lambda: 0
        self.base = resident()
        self.limit = 0  # maxmemory; 0: none
        self._data = 0  # bytes when last measured
        self._clients = 0
        self._since = 0
        self._next = 0.0  # time.perf_counter() before which the data is not measured again

    def set_limit(self, limit: int) -> None:
        """Set maxmemory."""
        self.limit = limit
        self._next = 0.0
        if limit:
            self.used()

    def dataset(self) -> int:
        """Return the approximate bytes of keys and values."""
        return sum(_size_of_all(db.values) + 100 * len(db.expires) for db in self._databases)

    def used(self) -> int:
        """Measure and return the bytes of the data and of the connections."""
        begun = time.perf_counter()
        self._data, self._clients = self.dataset(), self.buffers()
        self._since = 0
        ended = time.perf_counter()
        self._next = ended + _SHARE * (ended - begun)
        return self._data + self._clients

    def measure_clients(self) -> None:
        """Measure the bytes of connections, which grow without a write. Called once a second."""
        if self.limit:
            self._clients = self.buffers()

    @property
    def _bound(self) -> int:
        """The most bytes that may be used now."""
        return self._data + self._clients + self._since

    def full(self) -> bool:
        """Whether more than `limit` is used."""
        if not self.limit or self._bound <= self.limit:
            return False
        if time.perf_counter() >= self._next:
            self.used()
        return self._bound > self.limit

    def available_bytes(self) -> int | None:
        """Return the bytes below `limit`, by the last measurement; None if there is no limit."""
        return max(self.limit - self._bound, 0) if self.limit else None

    def grow(self, size: int) -> None:
        """Count bytes that a write took in addition to its arguments."""
        self._since += size

    def note(self, args: Sequence[bytes]) -> None:
        """Count the arguments of a write that is allowed."""
        self._since += sum(map(len, args)) + _PER_ARGUMENT * len(args)


def _size_of_all(values: dict[bytes, Value]) -> int:
    return sum(map(sys.getsizeof, values)) + sum(map(size_of, values.values())) + _PER_KEY * len(values)


def size_of(value: Value) -> int:
    """Return the approximate bytes of a value in this process."""
    if isinstance(value, StoredStream):
        return value.memory()
    if isinstance(value, bytes):
        return sys.getsizeof(value)
    if isinstance(value, dict):
        return sys.getsizeof(value) + _sizes(value) + _sizes(value.values())
    return sys.getsizeof(value) + _sizes(value)


def _sizes(items: Iterable[bytes]) -> int:
    return sum(map(sys.getsizeof, items))


def resident() -> int:
    """Return the resident bytes of this process; the peak if the system does not report it."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return peak()


def peak() -> int:
    """Return the highest resident size of this process, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
