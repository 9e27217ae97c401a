"""Cold data: sealed nodes wait here, and are packed when nobody asks for anything, or when they are too much.

    sealed node ──► shelf ──► packed       a fifth of the bytes; 0.1 µs an entry to read back
                      │
                      └─ gone meanwhile (trimmed): only a weak reference stood here

Packing costs about a microsecond an entry, which is as much as adding it: so a server that is busy does not pack before
its sealed nodes take `MOST_HOT` bytes, and one that has been idle for a second packs all there is, a little at a time.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_streams.engine.store.node import Node

MOST_HOT = 256 * 1024 * 1024
_AT_ONCE = 2  # nodes packed for each one sealed beyond that


class Shelf:
    """Sealed nodes that are not packed, oldest first."""

    __slots__ = ("_freed", "_waiting", "bytes")

    def __init__(self) -> None:
        self._waiting: deque[tuple[weakref.ref[Node], int]] = deque()
        self._freed = 0
        self.bytes = 0  # of the nodes that wait

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, node: Node, size: int) -> None:
        """A node has been sealed."""
        self._waiting.append((weakref.ref(node), size))
        self.bytes += size
        for _ in range(_AT_ONCE):
            if self.bytes > MOST_HOT:
                self._pack_one()

    def pack(self, seconds: float) -> None:
        """Pack nodes for about so long."""
        until = time.perf_counter() + seconds
        while self._waiting and time.perf_counter() < until:
            self._pack_one()
        if not self._waiting and self._freed > 1 << 20:
            self._freed = 0
            _give_back()

    def _pack_one(self) -> None:
        reference, size = self._waiting.popleft()
        self.bytes -= size
        node = reference()
        if node is not None:
            node.pack()
            self._freed += size


def _give_back() -> None:
    """Let the system have the pages that packing has freed, where the C library can."""
    with contextlib.suppress(Exception):
        import ctypes

        ctypes.CDLL(None).malloc_trim(0)
