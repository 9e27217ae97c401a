"""How much memory the data takes, and whether another write may come in (maxmemory).

The resident size of a Python process says little about that: what DEL frees stays with the allocator for a while. So
the data is counted, node by node and value by value, and as seldom as will do:

    |<------ counted ------>|<-- since -->|           |
    values, buffers, when    bytes of the   room       maxmemory
    last counted             writes since

The process before any data (`base`: the interpreter and this package) is not in it: `--maxmemory 10mb` is room for that
much.
`since` is an upper bound, so nothing needs counting while it stays below maxmemory. Where it does not, the data is
counted again, but never for more than a small part of the time; between two counts the bound decides.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterable, Sequence

from spark_streams.engine.store.keyspace import Database, Value
from spark_streams.engine.store.stream import Stream

_PER_ARGUMENT = 120  # bytes at most that an argument takes beside its own
_PER_KEY = 200  # bytes of a key's places in dictionaries, and its own header
_SHARE = 20  # at most one part in so many of the time goes into counting


class MemoryGauge:
    """Counts the data of some databases. `buffers` tells the bytes that wait in connections."""

    def __init__(self, databases: Sequence[Database]) -> None:
        self._databases = databases
        self.buffers: Callable[[], int] = lambda: 0
        self.base = resident()
        self.limit = 0  # maxmemory; 0: none
        self._counted = 0
        self._since = 0
        self._next = 0.0  # before this moment it is not counted again

    def set_limit(self, limit: int) -> None:
        """maxmemory has changed."""
        self.limit = limit
        self._next = 0.0
        if limit:
            self.used()

    def dataset(self) -> int:
        """About how many bytes keys and values take."""
        return sum(_size_of_all(db.values) + 100 * len(db.expires) for db in self._databases)

    def used(self) -> int:
        """The data, and what waits in connections. Counts."""
        begun = time.perf_counter()
        self._counted = self.dataset() + self.buffers()
        self._since = 0
        ended = time.perf_counter()
        self._next = ended + _SHARE * (ended - begun)
        return self._counted

    def full(self) -> bool:
        """Whether more than `limit` is used."""
        if not self.limit or self._counted + self._since <= self.limit:
            return False
        if time.perf_counter() >= self._next:
            self.used()
        return self._counted + self._since > self.limit

    def room(self) -> int | None:
        """Bytes that are left below `limit`, by the last count; None if there is no limit."""
        return max(self.limit - self._counted - self._since, 0) if self.limit else None

    def grow(self, size: int) -> None:
        """A write took so many bytes more than its arguments."""
        self._since += size

    def note(self, args: Sequence[bytes]) -> None:
        """A write with these arguments is let in."""
        self._since += sum(map(len, args)) + _PER_ARGUMENT * len(args)


def _size_of_all(values: dict[bytes, Value]) -> int:
    return sum(map(sys.getsizeof, values)) + sum(map(size_of, values.values())) + _PER_KEY * len(values)


def size_of(value: Value) -> int:
    """About how many bytes a value takes in this process."""
    if isinstance(value, Stream):
        return value.memory()
    if isinstance(value, bytes):
        return sys.getsizeof(value)
    if isinstance(value, dict):
        return sys.getsizeof(value) + _sizes(value) + _sizes(value.values())
    return sys.getsizeof(value) + _sizes(value)


def _sizes(items: Iterable[bytes]) -> int:
    return sum(map(sys.getsizeof, items))


def resident() -> int:
    """Bytes of this process in memory now; its peak where the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return peak()


def peak() -> int:
    """The most that this process has had in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
