"""The memory that the data takes, and whether another write is allowed (maxmemory).

The resident size of a Python process says little about the data: memory freed by DEL stays with the allocator for a
while. So the data is measured, node by node and value by value, as rarely as possible:

    |<----- measured ----->|<-- since -->|                  |
    values, clients, when    bytes of the   available bytes   maxmemory
    last measured            writes since

Connections grow without a write (unfinished requests, unread replies): they are measured once a second, which is fast.

The process before any data (`base`: the interpreter and this package) is not included: with `--maxmemory 10mb` the data
may take that much. `since` is an upper bound, so nothing needs measuring while it stays below maxmemory. Above, the
data is measured again, but for only a small part of the time; between two measurements the bound decides.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterable, Sequence

from spark_streams.engine.store.keyspace import Database, Value
from spark_streams.engine.store.stream import Stream

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
    """Return the resident bytes of this process; the peak if the system does not report it."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return peak()


def peak() -> int:
    """Return the highest resident size of this process, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
