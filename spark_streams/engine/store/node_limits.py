"""Nodes of streams: packing those that are cold, and cutting inexact ones where Redis would have closed them."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections import deque

import hiredis

from spark_streams.engine.store.listpack_size import NodeSize
from spark_streams.engine.store.node import Node

# Cold data: sealed nodes wait here, and are packed when the engine is idle or when they take too much memory.
#
#     sealed node ──► shelf ──► packed       a fifth of the bytes; 0.1 µs an entry to read again
#                       │
#                       └─ trimmed meanwhile: the shelf holds only a weak reference
#
# Packing takes half a microsecond an entry, as much as adding it. So the server packs
#
# - all sealed nodes, a little at a time, if it has been idle for a second;
# - one small node whenever no request waits, while sealed nodes take more than `_MANY_HOT_BYTES`;
# - also while requests wait, if they take more than `MAX_HOT_BYTES`.

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


# Node borders: cuts an inexact chain of nodes where Redis would have closed them.
#
#     before   [ 100 slots, inexact ][ 100 slots, inexact ][ 37 slots, open ]
#     after    [ 45, exact ][ 55 slots, inexact ][ 100 slots, inexact ][ 37 slots, open ]
#
# Only the head is cut off, as much as one trim examines; so each entry is measured once in its life. An inexact node
# may be split and its remainder joined to the next node, but it never crosses a border that is exact already.


class NodeLimits:
    """The settings of streams; one object, shared by all streams."""

    def __init__(self, entries: int = 100, bytes: int = 4096) -> None:
        self.entries = entries  # stream-node-max-entries; 0 is no limit
        self.bytes = bytes  # stream-node-max-bytes; 0 is no limit
        self.idmp_duration = 100  # stream-idmp-duration, in seconds: for streams created from now on
        self.idmp_maxsize = 100  # stream-idmp-maxsize
        self.shelf = Shelf()  # sealed nodes that are not packed


def cut_head(nodes: list[Node], limits: NodeLimits) -> tuple[list[Node], NodeSize | None]:
    """Return the nodes with an exact node at the head, if the first was inexact.

    If all entries fit into that node, it stays open, and its size is returned so that counting can continue.
    """
    size = NodeSize()
    head = Node(nodes[0].base)
    for used, node in enumerate(nodes):
        reader = hiredis.Reader()
        reader.feed(node.wire(0, node.slots))
        for index, entry_id in enumerate(node.id_list(0, node.slots)):
            pairs = reader.gets()[1]
            if not size.takes(pairs, limits.entries, limits.bytes):
                head.take_over(node, 0, index)
                head.seal()
                limits.shelf.put(head, head.memory)
                return [head, *_rest(nodes[used:], index)], None
            size.add(entry_id, pairs)
        head.take_over(node, 0, node.slots)
    head.size = size.bytes
    return [head], size


def _rest(nodes: list[Node], index: int) -> list[Node]:
    """Return these nodes without the first `index` slots."""
    if not index:
        return nodes
    first = nodes[0]
    tail = Node(first.base + index)
    tail.exact = False
    tail.take_over(first, index, first.slots)
    if len(nodes) > 1:
        tail.seal()
    return [tail, *nodes[1:]]
