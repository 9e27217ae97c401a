"""A stream: entries in order of their ids, append-only, in nodes.

    nodes   [ sealed ][ sealed ][ sealed ][ open ]     each about stream-node-max-entries slots
    firsts    id        id        id        id         for bisecting: from an id to its node in log n
    exact   |<------- frontier ------->|               nodes that begin and end where Redis' would

Approximate trimming drops whole nodes and must drop those that Redis would drop. Redis closes a node by entries (a
count, cheap) or by bytes of its listpack (which has to be computed value by value). So a node is closed by count, and
carries an upper bound of its bytes; as long as the bound stays below stream-node-max-bytes the node is exact. Past it,
this node and all after it are inexact, and are cut exactly (node_limits.py) only when a trim arrives at them: a stream
that is never trimmed never pays for it. A stream whose newest node has been cut exactly goes on counting (`tail_size`).

Two things are not followed to the byte, because they would cost every stream: where XDEL or exact trimming has emptied
an inexact node, the borders after it may differ from Redis'.

What consumer groups hold as pending refers to slots, not to copies of ids. Before a node goes, the groups are told, and
write down those of its ids that they still need.

No clock and no socket: whoever calls passes ids, counts and limits.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_streams.engine.store.entry import fields_of
from spark_streams.engine.store.group import Group
from spark_streams.engine.store.idempotence import Idempotence
from spark_streams.engine.store.listpack_size import NodeSize
from spark_streams.engine.store.node import Node
from spark_streams.engine.store.node_limits import NodeLimits, cut_head
from spark_streams.engine.store.node_list import NodeList, Slice

# An inexact node is closed at this many bytes on the wire, so that offsets fit in 32 bits.
_MAX_WIRE_BYTES = 1 << 20
# Nodes of up to so many entries may take batches, whose entries are 256 KB at most.
_MOST_BY_COUNT = 10_000


def _head(wire: bytes) -> int:
    """The bytes before the names and values, `*2 $15 1526919030474-0 *4` with its line ends, or a few less."""
    return wire.index(b"\r\n*") + 6


class Stream(NodeList):
    """The value of a key of type stream. Ids are packed integers (see entryid.py)."""

    __slots__ = ("groups", "idempotence", "limits", "tail_size")

    def __init__(self, limits: NodeLimits) -> None:
        super().__init__()
        self.limits = limits
        self.tail_size: NodeSize | None = None  # bytes of the newest node, where they are counted exactly
        self.groups: dict[bytes, Group] = {}
        self.idempotence = Idempotence(limits.idmp_duration, limits.idmp_maxsize)

    def append(self, entry_id: int, wire: bytes, pairs: Sequence[bytes] | None = None) -> None:
        """Add an entry whose id is above `last_id` and whose reply bytes are `wire`.

        With its fields and values, alternating, its node's bytes can be told better.
        """
        nodes = self.nodes
        node = nodes[-1] if nodes else self._open()
        if self.tail_size is not None:
            node = self._append_sized(node, self.tail_size, entry_id, wire)
        else:
            limits = self.limits
            if limits.entries and node.slots >= limits.entries:
                node = self._open()
            size = len(wire)
            bound = size + 8 if pairs is None else node.bound(entry_id, 1, size - _head(wire), size, pairs[::2])
            if limits.bytes and node.size + bound + size >= limits.bytes and node.slots:
                node.exact = False
                if node.memory > _MAX_WIRE_BYTES:
                    node = self._open()
            node.append(entry_id, wire)
            node.size += bound
        if node.slots == 1:
            self.firsts.append(entry_id)
        self.next_slot += 1
        if not self.length:
            self.first_id = entry_id
        self.length += 1
        self.entries_added += 1
        self.last_id = entry_id

    @property
    def takes_batches(self) -> bool:
        """Whether `extend` can be used: not where the bytes of each entry must be counted."""
        return self.tail_size is None and 0 < self.limits.entries <= _MOST_BY_COUNT and bool(self.nodes)

    def open_node(self) -> Node:
        """The newest node, if it has room for another entry, else a new one. The caller adds to it."""
        node = self.nodes[-1]
        return node if node.slots < self.limits.entries else self._open()

    def extend(self, entry_id: int, wire: bytes, lengths: Sequence[int], names: Sequence[bytes]) -> None:
        """Add entries of unbroken ids above `last_id` to the newest node, which has room for them (`open_node`)."""
        node = self.nodes[-1]
        count = len(lengths)
        if not node.slots:
            self.firsts.append(entry_id)
        longest = max(lengths)
        node.size += node.bound(entry_id, count, len(wire) - count * _head(wire), longest, names)
        node.extend(entry_id, wire, lengths)
        if self.limits.bytes and node.size + longest - _head(wire) >= self.limits.bytes and node.slots > 1:
            node.exact = False
        self.next_slot += count
        if not self.length:
            self.first_id = entry_id
        self.length += count
        self.entries_added += count
        self.last_id = entry_id + count - 1

    def _append_sized(self, node: Node, size: NodeSize, entry_id: int, wire: bytes) -> Node:
        """Append where the bytes of the newest node are counted exactly; the node that took the entry."""
        pairs = fields_of(wire)
        if not size.takes(pairs, self.limits.entries, self.limits.bytes):
            # The border is exact: from here on a bound will do again.
            self.tail_size = None
            node = self._open()
            node.size += node.bound(entry_id, 1, len(wire) - _head(wire), len(wire), pairs[::2])
        else:
            size.add(entry_id, pairs)
            node.size = size.bytes
        node.append(entry_id, wire)
        return node

    def _open(self) -> Node:
        node = Node(self.next_slot)
        if self.nodes:
            top = self.nodes[-1]
            node.exact = top.exact
            if top.is_open:
                top.seal()
                self.limits.shelf.put(top, top.memory)
        self.nodes.append(node)
        return node

    # Reading

    def delete(self, entry_id: int) -> bool:
        """Remove one entry (XDEL). False when there is no such entry."""
        entry = self.find(entry_id)
        if entry is None:
            return False
        entry.node.kill(entry.low, entry.low + 1)
        self.length -= 1
        if not entry.node.live:
            self._drop(self._node_at(entry_id))
        self.max_deleted_id = max(self.max_deleted_id, entry_id)
        if entry_id == self.first_id:
            self._find_first()
        return True

    def delete_slots(self, piece: Slice) -> None:
        """Remove neighbouring live entries at once (`delete`)."""
        node, low, high = piece
        first, last = node.id_at(low), node.id_at(high - 1)
        node.kill(low, high)
        self.length -= high - low
        if not node.live:
            self._drop(self._node_at(first))
        self.max_deleted_id = max(self.max_deleted_id, last)
        if first == self.first_id:
            self._find_first()

    def trim(self, keep: int | None, min_id: int, approximate: bool, limit: int) -> int:
        """Remove old entries: down to `keep` entries, or (keep None) all below `min_id`. Returns how many went.

        Approximate trimming removes whole nodes only, and looks at no more than `limit` entries (0: all).
        """
        removed = 0
        while self.nodes:
            if keep is not None and self.length <= keep:
                break
            if approximate and not self.nodes[0].exact:
                self.nodes, self.tail_size = cut_head(self.nodes, self.limits)
                # All but the first two are as they were.
                same = max(len(self.nodes) - 2, 0)
                self.firsts[: len(self.firsts) - same] = [node.first for node in self.nodes[:2]]
            node = self.nodes[0]
            if limit and removed + node.live > limit:
                break
            # By its last slot, even a dead one, as Redis does.
            whole = self.length - node.live >= keep if keep is not None else node.last < min_id
            if whole:
                self.length -= node.live
                removed += node.live
                self._drop(0)
                continue
            if approximate:
                break
            stop = node.slots if keep is not None else node.index(min_id)
            for low, high in list(node.spans(0, stop)):
                take = high - low if keep is None else min(high - low, self.length - keep)
                node.kill(low, low + take)
                self.length -= take
                removed += take
            if not node.live:
                self._drop(0)
            break
        if removed:
            self._find_first()
        return removed

    def trim_approximately(self, keep: int, times: int) -> int:
        """As `trim` after each of the last `times` entries; `keep` is not 0. Returns how many went."""
        limit = min(100 * self.limits.entries, 1_000_000)
        removed = 0
        for _ in range(times):
            gone = self.trim(keep, 0, True, limit)
            removed += gone
            if gone + self.limits.entries < limit:  # what the limit would have held back is not there
                break
        return removed

    @staticmethod
    def _last_live(node: Node) -> int:
        index = node.slots - 1
        while node.is_dead(index):
            index -= 1
        return node.id_at(index)

    def memory(self) -> int:
        """About how many bytes the stream takes in this process, groups included."""
        entries = sum(node.memory for node in self.nodes)
        groups = sum(len(name) + _memory_of(group) for name, group in self.groups.items())
        return 500 + entries + groups

    def set_last_id(self, last_id: int) -> None:
        """Where the next id must be above (XSETID); not below the newest live entry.

        Dead slots above it go, so that slots stay in the order of their ids when such an id comes again.
        """
        if self.nodes and self.nodes[-1].last > last_id:
            node = self.nodes[-1]
            keep = node.index(last_id + 1)
            for group in self.groups.values():
                group.pending.keep_ids(node.id_at(keep), node.last, self)
            self.next_slot -= node.slots - keep
            node.cut(keep)
            self.tail_size = None
        self.last_id = last_id

    def top_id(self) -> int:
        """The id of the newest live entry; 0 when there is none (`streamLastValidID`)."""
        return self._last_live(self.nodes[-1]) if self.nodes else 0

    def drop_empty(self) -> None:
        """Let go of the nodes that have lost all their entries, after many entries were removed in many nodes."""
        if self.nodes and not self.nodes[-1].live:
            self.tail_size = None
        for node in self.nodes:
            if not node.live:
                for group in self.groups.values():
                    group.keep_ids(self, node)
        ordinal = self.nodes[0].base if self.nodes else self.next_slot
        kept = [node for node in self.nodes if node.live]
        for node in kept:
            node.base = ordinal
            ordinal += node.slots
        if kept and kept[-1] is not self.nodes[-1]:
            kept[-1].unseal()
        self.nodes, self.firsts, self.next_slot = kept, [node.first for node in kept], ordinal
        self._find_first()

    def _find_first(self) -> None:
        for node in self.nodes:
            for low, _high in node.spans(0, node.slots):
                self.first_id = node.id_at(low)
                return
        self.first_id = 0

    def _drop(self, at: int) -> None:
        node = self.nodes[at]
        for group in self.groups.values():
            group.keep_ids(self, node)
        del self.nodes[at], self.firsts[at]
        if at == len(self.nodes):
            self.tail_size = None
        if at:
            # Slots are counted without gaps: two ordinals tell how many slots lie between.
            for later in self.nodes[at:]:
                later.base -= node.slots
            self.next_slot -= node.slots
            if at == len(self.nodes):
                self.nodes[-1].unseal()


def _memory_of(group: Group) -> int:
    names = sum(map(len, group.consumers))
    return 500 + 200 * len(group.pending.index.ranges) + 300 * len(group.consumers) + names
