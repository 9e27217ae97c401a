"""A stream: entries in order of their IDs, append-only, in nodes.

    nodes   [ sealed ][ sealed ][ sealed ][ open ]     each about stream-node-max-entries slots
    firsts    id        id        id        id         for bisecting: from an ID to its node in log n
    exact   |<------- frontier ------->|               nodes that begin and end as in Redis

Approximate trimming removes whole nodes, and must remove those that Redis would remove. Redis closes a node by entries
(a count, cheap) or by bytes of its listpack (which must be computed value by value). So a node is closed by count, and
stores an upper bound of its bytes. While the bound is below stream-node-max-bytes, the node is exact. Otherwise this
node and all after it are inexact, and are cut exactly (node_limits.py) only when a trim reaches them: a stream that is
never trimmed never pays for it. A stream whose newest node has been cut exactly continues to count (`tail_size`).

One case differs from Redis, because it would cost every stream: if XDEL or exact trimming has emptied an inexact node,
the borders after it may differ.

Pending entries of consumer groups refer to slots, not to copies of IDs. Before a node is dropped, the groups store
those of its IDs that they still need.

No clock and no socket: the caller passes IDs, counts and limits.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_streams.engine.store.entry_bytes import fields_of
from spark_streams.engine.store.group import StoredGroup
from spark_streams.engine.store.listpack_size import NodeSize
from spark_streams.engine.store.node import Node
from spark_streams.engine.store.node_limits import NodeLimits, cut_head
from spark_streams.engine.store.node_list import NodeList, Slice
from spark_streams.engine.store.remembered_messages import Idempotence

# An inexact node is closed at this many bytes on the wire, so that offsets fit in 32 bits.
_MAX_WIRE_BYTES = 1 << 20
# Approximate bytes of a range of pending entries, and of an ID that a range stores.
PER_RANGE, _PER_ID = 200, 44
# Nodes of at most this many entries may take batches, whose entries are 256 KB at most.
_MAX_BATCH_NODE_ENTRIES = 10_000


def _head(wire: bytes) -> int:
    """Return the number of bytes before the names and values, `*2 $15 1526919030474-0 *4`, or a few less."""
    return wire.index(b"\r\n*") + 6


class StoredStream(NodeList):
    """The value of a key of type stream. IDs are packed integers (see entryid.py)."""

    __slots__ = ("groups", "idempotence", "limits", "tail_size")

    def __init__(self, limits: NodeLimits) -> None:
        super().__init__()
        self.limits = limits
        self.tail_size: NodeSize | None = None  # bytes of the newest node, if they are counted exactly
        self.groups: dict[bytes, StoredGroup] = {}
        self.idempotence = Idempotence(limits.idmp_duration, limits.idmp_maxsize)

    def append(self, entry_id: int, wire: bytes, pairs: Sequence[bytes] | None = None) -> None:
        """Append an entry whose ID is above `last_id` and whose reply bytes are `wire`.

        pairs: its fields and values, alternating; they make the bound of the node's bytes tighter.
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
        """Whether `extend` can be used: not if the bytes of each entry must be counted."""
        return self.tail_size is None and 0 < self.limits.entries <= _MAX_BATCH_NODE_ENTRIES and bool(self.nodes)

    def open_node(self) -> Node:
        """Return the newest node if it can take another entry, else a new one. The caller adds to it."""
        node = self.nodes[-1]
        return node if node.slots < self.limits.entries else self._open()

    def extend(self, entry_id: int, wire: bytes, lengths: Sequence[int], names: Sequence[bytes]) -> None:
        """Append consecutive entries above `last_id` to the newest node, which can take them (`open_node`)."""
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
        """Append an entry while the bytes of the newest node are counted exactly. Return the node that took it."""
        pairs = fields_of(wire)
        if not size.takes(pairs, self.limits.entries, self.limits.bytes):
            # The border is exact: from here on a bound is enough.
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

    # Removing

    def delete(self, entry_id: int) -> bool:
        """Remove one entry (XDEL). False: there is no such entry."""
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
        """Remove consecutive live entries (`delete`)."""
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
        """Remove old entries: down to `keep` entries, or (keep None) all below `min_id`. Return how many were removed.

        Approximate trimming removes whole nodes only, and examines at most `limit` entries (0: all).
        """
        removed = 0
        while self.nodes:
            if keep is not None and self.length <= keep:
                break
            if approximate and not self.nodes[0].exact:
                self.nodes, self.tail_size = cut_head(self.nodes, self.limits)
                # All but the first two are unchanged.
                unchanged = max(len(self.nodes) - 2, 0)
                self.firsts[: len(self.firsts) - unchanged] = [node.first for node in self.nodes[:2]]
            node = self.nodes[0]
            if limit and removed + node.live > limit:
                break
            # By its last slot, dead or alive, as Redis does.
            removable = self.length - node.live >= keep if keep is not None else node.last < min_id
            if removable:
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
        """As `trim` after each of the last `times` entries; `keep` is not 0. Return how many were removed."""
        limit = min(100 * self.limits.entries, 1_000_000)
        removed = 0
        for _ in range(times):
            trimmed = self.trim(keep, 0, True, limit)
            removed += trimmed
            if trimmed + self.limits.entries < limit:  # the limit has held nothing back
                break
        return removed

    @staticmethod
    def _last_live(node: Node) -> int:
        index = node.slots - 1
        while node.is_dead(index):
            index -= 1
        return node.id_at(index)

    def memory(self) -> int:
        """Return the approximate bytes of memory of the stream, including groups."""
        entries = sum(node.memory for node in self.nodes)
        groups = sum(len(name) + _memory_of(group) for name, group in self.groups.items())
        return 500 + entries + groups + self.idempotence.memory

    def set_last_id(self, last_id: int) -> None:
        """Set the ID above which the next ID must be (XSETID); it is not below the newest live entry.

        Dead slots above it are dropped, so that slots stay in the order of their IDs if such an ID is added again.
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
        """Return the ID of the newest live entry; 0 if there is none (`streamLastValidID`)."""
        return self._last_live(self.nodes[-1]) if self.nodes else 0

    def drop_empty(self) -> None:
        """Drop the nodes without live entries, after entries were removed in many nodes."""
        if self.nodes and not self.nodes[-1].live:
            self.tail_size = None
        for node in self.nodes:
            if not node.live:
                for group in self.groups.values():
                    group.keep_ids(self, node)
        ordinal = self.nodes[0].base if self.nodes else self.next_slot
        live_nodes = [node for node in self.nodes if node.live]
        for node in live_nodes:
            node.base = ordinal
            ordinal += node.slots
        if live_nodes and live_nodes[-1] is not self.nodes[-1]:
            live_nodes[-1].unseal()
        self.nodes, self.firsts, self.next_slot = live_nodes, [node.first for node in live_nodes], ordinal
        self._find_first()

    def _find_first(self) -> None:
        for node in self.nodes:
            for low, _high in node.spans(0, node.slots):
                self.first_id = node.id_at(low)
                return
        self.first_id = 0

    def _drop(self, index: int) -> None:
        node = self.nodes[index]
        for group in self.groups.values():
            group.keep_ids(self, node)
        del self.nodes[index], self.firsts[index]
        if index == len(self.nodes):
            self.tail_size = None
        if index:
            # Slots are counted without gaps: two ordinals tell how many slots are between them.
            for following in self.nodes[index:]:
                following.base -= node.slots
            self.next_slot -= node.slots
            if index == len(self.nodes):
                self.nodes[-1].unseal()


def _memory_of(group: StoredGroup) -> int:
    names = sum(map(len, group.consumers))
    ranges = group.pending.index.ranges
    stored_ids = sum([len(pel_range.ids) for pel_range in ranges if pel_range.ids is not None])
    return 500 + PER_RANGE * len(ranges) + _PER_ID * stored_ids + 300 * len(group.consumers) + names
