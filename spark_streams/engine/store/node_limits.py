"""Node borders: cuts an inexact chain of nodes where Redis would have closed them.

    before   [ 100 slots, inexact ][ 100 slots, inexact ][ 37 slots, open ]
    after    [ 45, exact ][ 55 slots, inexact ][ 100 slots, inexact ][ 37 slots, open ]

Only the head is cut off, as much as one trim examines; so each entry is measured once in its life. An inexact node may
be split and its remainder joined to the next node, but it never crosses a border that is exact already.
"""

from __future__ import annotations

import hiredis

from spark_streams.engine.store.cold_nodes import Shelf
from spark_streams.engine.store.listpack_size import NodeSize
from spark_streams.engine.store.node import Node


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
