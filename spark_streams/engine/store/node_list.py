"""A stream's nodes in order, and how entries are found in them: by bisection over the nodes' first ids.

    nodes    the nodes, oldest first         firsts   the id of each one's first slot
    length   live entries                    next_slot   ordinal of the next slot

Ids are packed integers (entryid.py). Groups and pending lists know a stream as this.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from spark_streams.engine.store.node import Node


class Slice(NamedTuple):
    """Neighbouring live slots of one node: low … high-1."""

    node: Node
    low: int
    high: int

    def wire(self) -> bytes:
        """Their reply bytes."""
        return self.node.wire(self.low, self.high)


class NodeList:
    """Nodes, what is counted over them, and the reading of them."""

    __slots__ = ("entries_added", "first_id", "firsts", "last_id", "length", "max_deleted_id", "next_slot", "nodes")

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.firsts: list[int] = []
        self.length = 0  # live entries
        self.last_id = 0  # the greatest id ever given, or set by XSETID
        self.first_id = 0  # of the oldest live entry; 0 when there is none
        self.max_deleted_id = 0  # the greatest id that XDEL removed
        self.entries_added = 0  # ever, or set by XSETID
        self.next_slot = 0  # ordinal of the next slot

    def _node_at(self, entry_id: int) -> int:
        """The index of the node that holds this id if any does; -1 when it is below the first."""
        return bisect_right(self.firsts, entry_id) - 1

    def slices(self, start: int, end: int, count: int | None = None) -> tuple[list[Slice], int]:
        """The live entries with start ≤ id ≤ end, at most `count`, oldest first; and how many they are."""
        pieces: list[Slice] = []
        left = self.length if count is None else min(count, self.length)
        wanted = left
        if start > end or left <= 0:
            return pieces, 0
        at = max(self._node_at(start), 0)
        while at < len(self.nodes) and left:
            node = self.nodes[at]
            if node.first > end:
                break
            low = node.index(start)
            high = node.slots if node.last <= end else node.index(end + 1)
            for begin, behind in node.spans(low, high):
                upto = min(behind, begin + left)
                pieces.append(Slice(node, begin, upto))
                left -= upto - begin
                if not left:
                    break
            at += 1
        return pieces, wanted - left

    def entries_backwards(self, start: int, end: int, count: int | None = None) -> list[bytes]:
        """The reply bytes of each live entry with start ≤ id ≤ end, newest first, at most `count`."""
        entries: list[bytes] = []
        left = self.length if count is None else min(count, self.length)
        at = self._node_at(end)
        while at >= 0 and left > 0 and start <= end:
            node = self.nodes[at]
            low = node.index(start)
            high = node.slots if node.last <= end else node.index(end + 1)
            for begin, behind in reversed(list(node.spans(low, high))):
                take = min(left, behind - begin)
                entries += reversed(node.wires(behind - take, behind))
                left -= take
            if low > 0 or node.first <= start:
                break
            at -= 1
        return entries

    def find(self, entry_id: int) -> Slice | None:
        """The live entry of exactly this id."""
        at = self._node_at(entry_id)
        if at < 0:
            return None
        node = self.nodes[at]
        index = node.index(entry_id)
        if index == node.slots or node.id_at(index) != entry_id or node.is_dead(index):
            return None
        return Slice(node, index, index + 1)

    # Slots, dead or alive: what pending runs refer to

    def slot(self, entry_id: int) -> int:
        """The ordinal of the first slot whose id is not below this one."""
        at = self._node_at(entry_id)
        if at < 0:
            return self.nodes[0].base if self.nodes else self.next_slot
        node = self.nodes[at]
        return node.base + node.index(entry_id)

    def slot_id(self, entry_id: int) -> int | None:
        """The smallest id of a slot, dead or alive, that is not below this one."""
        at = max(self._node_at(entry_id), 0)
        while at < len(self.nodes):
            node = self.nodes[at]
            index = node.index(entry_id)
            if index < node.slots:
                return node.id_at(index)
            at += 1
        return None

    def slot_id_below(self, entry_id: int) -> int:
        """The greatest id of a slot, dead or alive, below this one; the caller knows that there is one."""
        node = self.nodes[self._node_at(entry_id - 1)]
        return node.id_at(node.index(entry_id) - 1)

    def slot_ranges(self, start: int, end: int) -> Iterator[Slice]:
        """All slots with start ≤ id ≤ end, dead ones included, node by node."""
        at = max(self._node_at(start), 0)
        while at < len(self.nodes) and self.nodes[at].first <= end:
            node = self.nodes[at]
            low = node.index(start)
            high = node.slots if node.last <= end else node.index(end + 1)
            if low < high:
                yield Slice(node, low, high)
            at += 1

    # Removing
