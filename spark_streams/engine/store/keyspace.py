"""Databases: numbered maps from keys to values, with expiry.

    values   key → bytes (string) | dict (hash) | set | list | Stream     the Python type is the Redis type
    expires  key → Unix milliseconds
    watched  key → clients that WATCH it           changed keys mark them dirty
    waiting  key → waiters, in order of arrival    changed keys are put on `ready`, and served after the command

The clock is passed in: a key whose time has come is dropped when it is next looked at.

`changes` counts as Redis counts for rdb_changes_since_last_save: most commands once, others once for each thing that
they add or remove, which they say where they tell of the change; what expires is no change.
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
    """Who watches a key (WATCH): `dirty` once it has changed."""

    dirty: bool


class Waiting(Protocol):
    """Who waits for a key, in the order in which they came (blocking.py serves them)."""

    keys: Sequence[bytes]
    needs_key: bool


def wrong_type() -> CommandError:
    """The key holds a value of another type."""
    return CommandError("WRONGTYPE Operation against a key holding the wrong kind of value")


def existing(value: V | None) -> V:
    """The value of a key that must be there. Raises CommandError."""
    if value is None:
        raise CommandError("ERR no such key")
    return value


class Database:
    """One numbered database."""

    __slots__ = ("changes", "clock", "expired", "expires", "number", "ready", "values", "waiting", "watched")

    def __init__(self, number: int, clock: Callable[[], int]) -> None:
        self.number = number
        self.clock = clock
        self.values: dict[bytes, Value] = {}
        self.expires: dict[bytes, int] = {}
        self.watched: dict[bytes, set[Watcher]] = {}
        self.waiting: dict[bytes, dict[Waiting, None]] = {}
        self.ready: dict[bytes, None] = {}
        self.changes = 0
        self.expired: Callable[[Database, bytes], None] = lambda db, key: None  # told of every key that expires

    def get(self, key: bytes) -> Value | None:
        """The value, or None; an expired key is dropped."""
        if self.expires:
            self.expire_if_due(key)
        return self.values.get(key)

    def get_as(self, key: bytes, kind: type[T]) -> T | None:
        """The value if it is of this type, None if there is no key. Raises WRONGTYPE."""
        value = self.get(key)
        if value is None or type(value) is kind:
            return value
        raise wrong_type()

    def stream(self, key: bytes) -> Stream | None:
        """`get_as` for streams."""
        if self.expires:
            self.expire_if_due(key)
        value = self.values.get(key)
        if value is None or type(value) is Stream:
            return value
        raise wrong_type()

    def expire_if_due(self, key: bytes) -> None:
        """Drop the key if its time has come."""
        due = self.expires.get(key)
        if due is not None and due <= self.clock():
            self.remove(key, changes=0)
            self.expired(self, key)

    def drop_expired(self) -> None:
        """Drop every key whose time has come."""
        now = self.clock()
        for key in [key for key, due in self.expires.items() if due <= now]:
            self.remove(key, changes=0)
            self.expired(self, key)

    def set(self, key: bytes, value: Value, keep_ttl: bool = False, changes: int = 1) -> None:
        """Store a value and tell watchers and waiters."""
        self.values[key] = value
        if not keep_ttl:
            self.expires.pop(key, None)
        self.touch(key, changes)

    def remove(self, key: bytes, changes: int = 1) -> bool:
        """Drop a key and tell watchers and waiters."""
        if self.values.pop(key, None) is None:
            return False
        self.expires.pop(key, None)
        self.touch(key, changes)
        return True

    def shrunk(self, key: bytes, by: int) -> None:
        """So much was taken out of a hash, set or list: an empty one goes with its key."""
        if self.values[key]:
            self.touch(key, by)
        else:
            self.remove(key, by)

    def touch(self, key: bytes, changes: int = 1) -> None:
        """The value of this key has changed."""
        if self.watched and key in self.watched:
            for client in self.watched[key]:
                client.dirty = True
        self.touch_groups(key, changes)

    def touch_groups(self, key: bytes, changes: int = 1) -> None:
        """Only groups or counters of this stream have changed: for WATCH, as in Redis, that is no change of the key."""
        self.changes += changes
        if self.waiting and key in self.waiting:
            self.ready[key] = None

    def clear(self) -> None:
        """FLUSHDB."""
        for key in list(self.watched):
            if key in self.values:
                self.touch(key, 0)
        for key in list(self.waiting):
            self.ready[key] = None
        self.changes += len(self.values)
        self.values.clear()
        self.expires.clear()

    def keys(self) -> Iterable[bytes]:
        """All keys that have not expired."""
        if self.expires:
            self.drop_expired()
        return self.values.keys()
