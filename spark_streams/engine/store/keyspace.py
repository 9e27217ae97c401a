"""Databases: numbered maps from keys to values, with expiry.

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

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias, TypeVar

from spark_streams.engine.resp.replies import CommandError
from spark_streams.engine.store.stream import Stream

Value: TypeAlias = bytes | dict[bytes, bytes] | set[bytes] | list[bytes] | Stream
T = TypeVar("T", bytes, dict[bytes, bytes], set[bytes], list[bytes], Stream)
V = TypeVar("V", bound=Value)

TYPE_NAMES: dict[type, str] = {bytes: "string", dict: "hash", set: "set", list: "list", Stream: "stream"}


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

    def stream(self, key: bytes) -> Stream | None:
        """Return a stream, None if there is no key. Raises WRONGTYPE."""
        if self.expires:
            self.expire_if_due(key)
        value = self.values.get(key)
        if value is None or type(value) is Stream:
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
