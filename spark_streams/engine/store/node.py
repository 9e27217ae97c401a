"""A node: about a hundred consecutive entries of a stream, in the form in which they are sent.

An entry is kept as the bytes of its own reply, built once when it arrives:

    *2\\r\\n $15\\r\\n1526919030474-0\\r\\n *4\\r\\n $4\\r\\nyear\\r\\n $4\\r\\n2013\\r\\n $3\\r\\nday\\r\\n …
    pair    id                         fields, byte for byte as in the XADD that brought them

The newest node of a stream is *open* and grows by pieces of one or more entries. When the next node is opened, it is
*sealed* and becomes one piece:

    pieces  [ entry ][ entry entry entry entry ][ entry ]        open
    blob    [ entry   entry entry entry entry     entry ]        sealed: a read of the whole node sends it unchanged
    lengths   82      82    82    83    83        83             of each entry
    ids     0: 1526919030474-0       3: 1526919030475-0          start of each run of consecutive IDs (entryid.py)

A sealed node that has become cold is *packed* (see cold_nodes.py): its blob is compressed, and decompressed when it is
read.

The start of each entry is computed from the lengths when a part of the node is read. A slot is the place of one entry;
a deleted entry keeps its slot (a tombstone) until the node is dropped.
"""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from spark_streams.base.ids import U64_MAX
from spark_streams.engine.store.entryid import IdRuns
from spark_streams.engine.store.listpack_size import integer_size

_NOTHING: list[Any] = []  # shared by all sealed nodes


class Node:
    """Consecutive entries. `base` is the ordinal of the first slot, counted since the stream was created."""

    __slots__ = ("__weakref__", "_blob", "_lengths", "_packed", "_pieces", "_places", "_starts", "base", "dead",
                 "exact", "ids", "live", "names", "names_bytes", "size", "slots")  # fmt: skip

    def __init__(self, base: int) -> None:
        self.base = base
        self.slots = 0  # entries, including deleted ones
        self.live = 0  # entries that can be read
        self.size = 64  # upper bound of the size in Redis' encoding; 64 for the header
        self.exact = True  # whether Redis, too, would start and end a node here
        self.names: Sequence[bytes] | None = None  # fields of the first entry, if known
        self.names_bytes = 0  # upper bound of their bytes on the wire
        self.dead: set[int] | None = None  # indexes of tombstones
        self.ids = IdRuns()
        self._lengths: array[int] = array("I")  # bytes of each entry
        self._starts: array[int] | None = None  # start of each entry, and the end; computed on demand
        self._blob: bytes | None = None  # all entries; None while open or packed
        self._packed: bytes | None = None  # the compressed blob
        self._pieces: list[bytes] = []
        self._places: list[int] = []  # slot at which each piece begins

    @property
    def first(self) -> int:
        """ID of the first slot."""
        return self.ids.first

    @property
    def last(self) -> int:
        """ID of the last slot."""
        return self.ids.last

    @property
    def is_open(self) -> bool:
        """Whether entries can be added."""
        return self._blob is None and self._packed is None

    @property
    def memory(self) -> int:
        """Approximate bytes of memory of the node."""
        data = sum(map(len, self._pieces)) + len(self._blob or b"") + len(self._packed or b"")
        return data + len(self._lengths) * self._lengths.itemsize + self.ids.memory + 400

    def bound(self, entry_id: int, count: int, wire_bytes: int, longest: int, names: Sequence[bytes]) -> int:
        """Return an upper bound of the bytes by which consecutive entries would make the node grow in Redis' encoding.

        wire_bytes: bytes of their names and values on the wire. longest: bytes of the longest entry. A string takes 4
        bytes less in a listpack (2 if it is very long), and names equal to the first entry's take none.
        """
        spared = 4 if longest < 4096 else 2
        strings = 2 * len(names)
        entry_bytes = 5 + integer_size(strings)
        if not self.slots:
            self.names = names
            self.names_bytes = sum(map(len, names)) + 6 * len(names)
            first, total = entry_id, self.names_bytes
        else:
            first, total = self.ids.first, 0
        if names == self.names:
            strings = len(names)
            entry_bytes = (4 if strings < 100 else 5) - self.names_bytes
        seq = (entry_id & U64_MAX) - (first & U64_MAX)
        entry_bytes += integer_size((entry_id >> 64) - (first >> 64))
        entry_bytes += max(integer_size(seq), integer_size(seq + count - 1)) - spared * strings
        return total + wire_bytes + count * entry_bytes

    def append(self, entry_id: int, wire: bytes) -> None:
        """Append an entry to an open node. The caller updates `size`."""
        self._places.append(self.slots)
        self._pieces.append(wire)
        self._lengths.append(len(wire))
        self._starts = None
        self.ids.append(entry_id)
        self.slots += 1
        self.live += 1

    def extend(self, entry_id: int, wire: bytes, lengths: Sequence[int]) -> None:
        """As `append`, for consecutive entries whose bytes are joined already."""
        self._places.append(self.slots)
        self._pieces.append(wire)
        self._lengths.extend(lengths)
        self._starts = None
        self.ids.extend(entry_id, len(lengths))
        self.slots += len(lengths)
        self.live += len(lengths)

    def take_over(self, other: Node, low: int, high: int) -> None:
        """Append slots of another node to an open node; dead slots stay dead."""
        if low == high:
            return
        wire = other.wire(low, high)
        self.dead = {
            *(self.dead or ()),
            *(self.slots + index - low for index in other.dead or () if low <= index < high),
        } or None
        self._places.append(self.slots)
        self._pieces.append(wire)
        self._lengths.extend(other._lengths[low:high].tolist())
        self._starts = None
        for first, count in other.ids.runs(low, high):
            self.ids.extend(first, count)
        self.slots += high - low
        self.live = self.slots - len(self.dead or ())
        self.size += len(wire) + 8 * (high - low)

    def seal(self) -> None:
        """Close the node: from now on it only loses entries."""
        self._blob = b"".join(self._pieces)
        self._pieces = self._places = _NOTHING
        self._lengths = self._lengths[:]  # without spare capacity

    def pack(self) -> None:
        """Compress a sealed node if that saves memory."""
        if self._blob is None or not self.slots:
            return
        packed = zlib.compress(self._blob, 1)
        if len(packed) < 0.8 * len(self._blob):
            self._blob, self._packed, self._starts, self.names = None, packed, None, None
            if max(self._lengths) < 1 << 16:
                self._lengths = array("H", self._lengths)

    def unseal(self) -> None:
        """Open a sealed node again, because it has become the newest of its stream."""
        if not self.is_open:
            self._reopen(self.wire(0, self.slots))

    def _reopen(self, data: bytes) -> None:
        self._pieces, self._places, self._blob, self._packed = [data], [0], None, None
        self._lengths = array("I", self._lengths)

    def cut(self, slots: int) -> None:
        """Keep only the first `slots` slots, at least one; the others must be dead."""
        self._reopen(self.wire(0, slots))
        del self._lengths[slots:]
        self._starts = None
        self.ids.cut(slots)
        self.slots = slots
        self.dead = {index for index in self.dead or () if index < slots} or None

    def id_at(self, index: int) -> int:
        """Return the ID of one slot."""
        return self.ids[index]

    def id_list(self, low: int, high: int) -> list[int]:
        """Return the IDs of the slots low … high-1."""
        return self.ids.between(low, high)

    def index(self, entry_id: int) -> int:
        """Return the first slot whose ID is not below this one; `slots` if there is none."""
        return self.ids.index(entry_id)

    def wire(self, low: int, high: int) -> bytes:
        """Return the reply bytes of the slots low … high-1, dead or alive."""
        blob = self._blob
        if blob is None and self._packed is not None:
            blob = _opened(self._packed)
        if blob is None:
            places, pieces = self._places, self._pieces
            begin = bisect_left(places, low)
            end = bisect_left(places, high)
            if begin < len(places) and places[begin] == low and (high == self.slots or places[end : end + 1] == [high]):
                return pieces[begin] if end == begin + 1 else b"".join(pieces[begin:end])
            blob = b"".join(pieces)
            self._pieces, self._places = [blob], [0]
        if low == 0 and high == self.slots:
            return blob
        starts = self._starts
        if starts is None:
            starts = self._starts = array("I", accumulate(self._lengths, initial=0))
        return blob[starts[low] : starts[high]]

    def wires(self, low: int, high: int) -> list[bytes]:
        """Return the reply bytes of each of the slots low … high-1, dead or alive."""
        data = self.wire(low, high)
        ends = list(accumulate(self._lengths[low:high]))
        return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def id_texts(self, low: int, high: int) -> list[bytes]:
        """Return the ID texts of the slots low … high-1."""
        return self.ids.texts(low, high)

    def is_dead(self, index: int) -> bool:
        """Whether the slot is a tombstone."""
        return self.dead is not None and index in self.dead

    def kill(self, low: int, high: int) -> None:
        """Turn the live slots low … high-1 into tombstones."""
        if self.dead is None:
            self.dead = set()
        self.dead.update(range(low, high))
        self.live -= high - low

    def spans(self, low: int, high: int) -> Iterator[tuple[int, int]]:
        """Yield the live slots among low … high-1, as continuous ranges (from, to)."""
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


# The nodes decompressed last: a client that reads a node in parts decompresses it once.
_OPENED = 32
_opened_blobs: dict[bytes, bytes] = {}


def _opened(packed: bytes) -> bytes:
    """Return the blob of a packed node."""
    blob = _opened_blobs.get(packed)
    if blob is None:
        if len(_opened_blobs) >= _OPENED:
            del _opened_blobs[next(iter(_opened_blobs))]
        blob = _opened_blobs[packed] = zlib.decompress(packed)
    return blob
