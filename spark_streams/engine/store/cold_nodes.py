"""Cold data: sealed nodes wait here, and are packed when the engine is idle or when they take too much memory.

    sealed node ──► shelf ──► packed       a fifth of the bytes; 0.1 µs an entry to read again
                      │
                      └─ trimmed meanwhile: the shelf holds only a weak reference

Packing takes half a microsecond an entry, as much as adding it. So the server packs

- all sealed nodes, a little at a time, if it has been idle for a second;
- one small node whenever no request waits, while sealed nodes take more than `_MANY_HOT_BYTES`;
- also while requests wait, if they take more than `MAX_HOT_BYTES`.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_streams.engine.store.node import Node

MAX_HOT_BYTES = 256 * 1024 * 1024
_MANY_HOT_BYTES = 32 * 1024 * 1024
_SMALL_NODE = 64 * 1024  # bytes that are packed in less than a millisecond
_PACKED_PER_SEAL = 2  # nodes packed for each node sealed above the limit


class Shelf:
    """Sealed nodes that are not packed, oldest first."""

    __slots__ = ("_freed", "_waiting", "bytes")

    def __init__(self) -> None:
        self._waiting: deque[tuple[weakref.ref[Node], int]] = deque()
        self._freed = 0
        self.bytes = 0  # size of the waiting nodes

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def is_full(self) -> bool:
        """Whether nodes are to be packed whenever no request waits."""
        return self.bytes > _MANY_HOT_BYTES and self._waiting[0][1] <= _SMALL_NODE

    def put(self, node: Node, size: int) -> None:
        """Add a node that has been sealed."""
        self._waiting.append((weakref.ref(node), size))
        self.bytes += size
        for _ in range(_PACKED_PER_SEAL):
            if self.bytes > MAX_HOT_BYTES:
                self.pack_one()

    def pack(self, seconds: float) -> None:
        """Pack nodes for about this time."""
        until = time.perf_counter() + seconds
        while self._waiting and time.perf_counter() < until:
            self.pack_one()
        if not self._waiting and self._freed > 1 << 20:
            self._freed = 0
            _release_memory()

    def pack_one(self) -> None:
        """Pack the oldest node."""
        reference, size = self._waiting.popleft()
        self.bytes -= size
        node = reference()
        if node is not None:
            node.pack()
            self._freed += size


def _release_memory() -> None:
    """Return the pages that packing has freed to the system, if the C library can."""
    with contextlib.suppress(Exception):
        import ctypes

        ctypes.CDLL(None).malloc_trim(0)
