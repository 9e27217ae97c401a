"""A stream's nodes in order. Entries are located by bisection over the nodes' first IDs.

    nodes    the nodes, oldest first         firsts   the ID of each node's first slot
    length   live entries                    next_slot   ordinal of the next slot

IDs are packed integers (entryid.py). Groups and pending lists use only this part of a stream.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from spark_streams.engine.store.node import Node


class Slice(NamedTuple):
    """Consecutive live slots of one node: low … high-1."""

    node: Node
    low: int
    high: int

    def wire(self) -> bytes:
        """Return the reply bytes of the entries."""
        return self.node.wire(self.low, self.high)


class NodeList:
    """Nodes, their counters, and reading them."""

    __slots__ = ("entries_added", "first_id", "firsts", "last_id", "length", "max_deleted_id", "next_slot", "nodes")

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.firsts: list[int] = []
        self.length = 0  # live entries
        self.last_id = 0  # the greatest ID ever assigned, or set by XSETID
        self.first_id = 0  # ID of the oldest live entry; 0 if there is none
        self.max_deleted_id = 0  # the greatest ID that XDEL removed
        self.entries_added = 0  # ever, or set by XSETID
        self.next_slot = 0  # ordinal of the next slot

    def _node_at(self, entry_id: int) -> int:
        """Return the index of the node that would hold this ID; -1 if it is below the first node."""
        return bisect_right(self.firsts, entry_id) - 1

    def slices(self, start: int, end: int, count: int | None = None) -> tuple[list[Slice], int]:
        """Return the live entries with start ≤ ID ≤ end, at most `count`, oldest first; and their number."""
        pieces: list[Slice] = []
        remaining = self.length if count is None else min(count, self.length)
        requested = remaining
        if start > end or remaining <= 0:
            return pieces, 0
        node_index = max(self._node_at(start), 0)
        while node_index < len(self.nodes) and remaining:
            node = self.nodes[node_index]
            if node.first > end:
                break
            low = node.index(start)
            high = node.slots if node.last <= end else node.index(end + 1)
            for begin, behind in node.spans(low, high):
                upto = min(behind, begin + remaining)
                pieces.append(Slice(node, begin, upto))
                remaining -= upto - begin
                if not remaining:
                    break
            node_index += 1
        return pieces, requested - remaining

    def entries_backwards(self, start: int, end: int, count: int | None = None) -> list[bytes]:
        """Return the reply bytes of each live entry with start ≤ ID ≤ end, newest first, at most `count`."""
        entries: list[bytes] = []
        remaining = self.length if count is None else min(count, self.length)
        node_index = self._node_at(end)
        while node_index >= 0 and remaining > 0 and start <= end:
            node = self.nodes[node_index]
            low = node.index(start)
            high = node.slots if node.last <= end else node.index(end + 1)
            for begin, behind in reversed(list(node.spans(low, high))):
                take = min(remaining, behind - begin)
                entries += reversed(node.wires(behind - take, behind))
                remaining -= take
            if low > 0 or node.first <= start:
                break
            node_index -= 1
        return entries

    def find(self, entry_id: int) -> Slice | None:
        """Return the live entry with exactly this ID."""
        node_index = self._node_at(entry_id)
        if node_index < 0:
            return None
        node = self.nodes[node_index]
        index = node.index(entry_id)
        if index == node.slots or node.id_at(index) != entry_id or node.is_dead(index):
            return None
        return Slice(node, index, index + 1)

    # Slots, dead or alive, to which pending ranges refer

    def slot(self, entry_id: int) -> int:
        """Return the ordinal of the first slot whose ID is not below this one."""
        node_index = self._node_at(entry_id)
        if node_index < 0:
            return self.nodes[0].base if self.nodes else self.next_slot
        node = self.nodes[node_index]
        return node.base + node.index(entry_id)

    def slot_id(self, entry_id: int) -> int | None:
        """Return the smallest ID of a slot, dead or alive, that is not below this one."""
        node_index = max(self._node_at(entry_id), 0)
        while node_index < len(self.nodes):
            node = self.nodes[node_index]
            index = node.index(entry_id)
            if index < node.slots:
                return node.id_at(index)
            node_index += 1
        return None

    def slot_id_below(self, entry_id: int) -> int:
        """Return the greatest ID of a slot, dead or alive, below this one. The caller ensures that there is one."""
        node = self.nodes[self._node_at(entry_id - 1)]
        return node.id_at(node.index(entry_id) - 1)

    def slot_ranges(self, start: int, end: int) -> Iterator[Slice]:
        """Yield all slots with start ≤ ID ≤ end, dead or alive, node by node."""
        node_index = max(self._node_at(start), 0)
        while node_index < len(self.nodes) and self.nodes[node_index].first <= end:
            node = self.nodes[node_index]
            low = node.index(start)
            high = node.slots if node.last <= end else node.index(end + 1)
            if low < high:
                yield Slice(node, low, high)
            node_index += 1

    # Removing
