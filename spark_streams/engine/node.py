"""A node: about a hundred neighbouring entries of a stream, in the form in which they are sent.

An entry is kept as the bytes of its own reply, built once when it arrives:

    *2\\r\\n $15\\r\\n1526919030474-0\\r\\n *4\\r\\n $4\\r\\nyear\\r\\n $4\\r\\n2013\\r\\n $3\\r\\nday\\r\\n …
    pair    id                         fields, byte for byte as in the XADD that brought them

The newest node of a stream is *open*: a list of ids and a list of entries. When the next node is begun it is *sealed*:

    blob    entry entry entry entry …     one bytes object: a read of the whole node sends it as it is
    starts  0     72    144   216   …     offsets of the entries, and the end
    ms, seq                               the ids, eight bytes each half

A slot is the place of one entry; a deleted entry keeps its slot (a tombstone) until the node goes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

import hiredis

from spark_streams.engine import entryid
from spark_streams.ids import U64_MAX


class Node:
    """Entries of neighbouring ids. `base` is the ordinal of its first slot, counted since the stream was made."""

    __slots__ = ("base", "blob", "dead", "exact", "first", "id_width", "ids", "last", "live", "ms", "parts", "seq",
                 "size", "slots", "starts")  # fmt: skip

    def __init__(self, base: int) -> None:
        self.base = base
        self.slots = 0  # entries, dead ones included
        self.live = 0  # entries that can be read
        self.size = 64  # at least what the node would take in Redis' encoding; 64 for the header
        self.exact = True  # whether Redis, too, would begin and end a node here
        self.first = 0  # id of the first slot
        self.last = 0  # id of the last slot
        self.dead: set[int] | None = None  # indexes of tombstones
        self.ids: list[int] = []
        self.parts: list[bytes] = []
        self.blob = b""
        self.starts: array[int] | None = None  # None while open
        self.ms: array[int] = array("Q")
        self.seq: array[int] = array("Q")
        self.id_width = 0  # length of the id texts, where all are equally long and at least ten

    def append(self, entry_id: int, wire: bytes) -> None:
        """Add an entry on top; only on an open node."""
        self.ids.append(entry_id)
        self.parts.append(wire)
        if not self.slots:
            self.first = entry_id
        self.last = entry_id
        self.slots += 1
        self.live += 1
        self.size += len(wire) + 8

    def seal(self) -> None:
        """Close the node: from now on it only loses entries."""
        self.blob = b"".join(self.parts)
        self.starts = array("I", accumulate(map(len, self.parts), initial=0))
        self.ms = array("Q", [entry_id >> 64 for entry_id in self.ids])
        self.seq = array("Q", [entry_id & U64_MAX for entry_id in self.ids])
        width = len(b"%d-%d" % (self.ms[0], min(self.seq)))
        if width >= 10 and width == len(b"%d-%d" % (self.ms[-1], max(self.seq))):
            self.id_width = width
        self.ids = []
        self.parts = []

    def unseal(self) -> None:
        """Open a sealed node again, because it has become the newest of its stream."""
        if self.starts is not None:
            self.ids = self.id_list(0, self.slots)
            self.parts = [self.blob[self.starts[i] : self.starts[i + 1]] for i in range(self.slots)]
            self.blob, self.starts, self.id_width = b"", None, 0

    def cut(self, slots: int) -> None:
        """Keep only so many slots, at least one; those that go are dead."""
        self.unseal()
        del self.ids[slots:], self.parts[slots:]
        self.slots = slots
        self.last = self.ids[-1]
        self.dead = {index for index in self.dead or () if index < slots} or None

    def id_at(self, index: int) -> int:
        """The id of one slot."""
        if self.starts is None:
            return self.ids[index]
        return (self.ms[index] << 64) | self.seq[index]

    def id_list(self, low: int, high: int) -> list[int]:
        """The ids of the slots low … high-1."""
        if self.starts is None:
            return self.ids[low:high]
        return [(ms << 64) | seq for ms, seq in zip(self.ms[low:high], self.seq[low:high], strict=True)]

    def index(self, entry_id: int) -> int:
        """The first slot whose id is not below this one; `slots` if there is none."""
        if entry_id <= self.first:
            return 0
        if self.starts is None:
            return bisect_left(self.ids, entry_id)
        ms = entry_id >> 64
        low = bisect_left(self.ms, ms)
        if low < self.slots and self.ms[low] == ms:
            high = bisect_left(self.ms, ms + 1, low)
            return bisect_left(self.seq, entry_id & U64_MAX, low, high)
        return low

    def wire(self, low: int, high: int) -> bytes:
        """The reply bytes of the slots low … high-1, whatever their state."""
        if self.starts is None:
            return b"".join(self.parts[low:high])
        if low == 0 and high == self.slots:
            return self.blob
        return self.blob[self.starts[low] : self.starts[high]]

    def id_texts(self, low: int, high: int) -> list[bytes]:
        """`<ms>-<seq>` of the slots low … high-1."""
        if self.starts is not None and self.id_width:
            blob, width = self.blob, self.id_width
            return [blob[start + 9 : start + 9 + width] for start in self.starts[low:high]]
        return [entryid.text(entry_id) for entry_id in self.id_list(low, high)]

    def id_bulks(self, low: int, high: int) -> list[bytes]:
        """The ids of the slots low … high-1 as bulk strings."""
        if self.starts is not None and self.id_width:
            blob, width = self.blob, self.id_width
            # An entry begins with `*2\\r\\n`, and the id's length has two digits: see id_width.
            return [blob[start + 4 : start + 11 + width] for start in self.starts[low:high]]
        return [b"$%d\r\n%b\r\n" % (len(text), text) for text in self.id_texts(low, high)]

    def is_dead(self, index: int) -> bool:
        """Whether the slot is a tombstone."""
        return self.dead is not None and index in self.dead

    def kill(self, index: int) -> None:
        """Turn a live slot into a tombstone."""
        if self.dead is None:
            self.dead = set()
        self.dead.add(index)
        self.live -= 1

    def spans(self, low: int, high: int) -> Iterator[tuple[int, int]]:
        """The live slots among low … high-1, as unbroken ranges (from, to)."""
        if self.dead is None:
            if low < high:
                yield low, high
            return
        for index in sorted(self.dead):
            if index >= high:
                break
            if index >= low:
                if low < index:
                    yield low, index
                low = index + 1
        if low < high:
            yield low, high


def fields_of(wire: bytes) -> list[bytes]:
    """Fields and values, alternating, of an entry's reply bytes."""
    reader = hiredis.Reader()
    reader.feed(wire)
    pairs: list[bytes] = reader.gets()[1]
    return pairs


def entry_wire(entry_id: int, fields: bytes) -> bytes:
    """The reply bytes of an entry from its id and its field section `*<n>\\r\\n$…`."""
    text = entryid.text(entry_id)
    return b"*2\r\n$%d\r\n%b\r\n%b" % (len(text), text, fields)
