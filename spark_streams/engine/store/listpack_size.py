"""The size of a stream node in Redis' listpack encoding.

Redis closes a node when its listpack would exceed `stream-node-max-bytes`, and approximate trimming removes whole nodes
only. To remove the same entries, the engine has to know where Redis would have closed the node. Nothing is stored in
this format here; only sizes are computed. Sources: `listpack.c`, `t_stream.c`.

    header 6 | count | deleted | fields n | field … | 0 | entry … | end 1
    entry:  flags | ms delta | seq delta | [fields n | field … unless the first entry's] value … | element count
"""

from __future__ import annotations

import re
from collections.abc import Sequence

MAX_NODE_BYTES = 1 << 30

_INTEGER = re.compile(rb"0|-?[1-9][0-9]{0,18}")


def integer_size(value: int) -> int:
    """Return the bytes of an integer element with its back length."""
    if 0 <= value <= 127:
        return 2
    if -4096 <= value <= 4095:
        return 3
    if -32768 <= value <= 32767:
        return 4
    if -8388608 <= value <= 8388607:
        return 5
    if -2147483648 <= value <= 2147483647:
        return 6
    return 10


def string_size(value: bytes) -> int:
    """Return the bytes of a string element with its back length; a string that is an integer is stored as one."""
    length = len(value)
    if length < 21 and _INTEGER.fullmatch(value):
        number = int(value)
        if -(1 << 63) <= number < 1 << 63:
            return integer_size(number)
    encoded = length + (1 if length < 64 else 2 if length < 4096 else 5)
    if encoded <= 127:
        return encoded + 1
    if encoded < 16383:
        return encoded + 2
    if encoded < 2097151:
        return encoded + 3
    return encoded + (4 if encoded < 268435455 else 5)


class _Sizes(dict[bytes, int]):
    """A cache of `string_size`: field names and most values repeat."""

    def __missing__(self, value: bytes) -> int:
        size = string_size(value)
        if len(value) <= 64:
            if len(self) > 20_000:
                self.clear()
            self[value] = size
        return size


_size_of = _Sizes().__getitem__


class NodeSize:
    """The running listpack size of one node, entry by entry."""

    __slots__ = ("_first_fields", "_first_id", "_rest", "bytes", "count")

    def __init__(self) -> None:
        self.count = 0
        self.bytes = 0
        self._rest = 0
        self._first_id = 0
        self._first_fields: Sequence[bytes] = ()

    def takes(self, pairs: Sequence[bytes], max_entries: int, max_bytes: int) -> bool:
        """Whether Redis would put an entry of these fields and values into this node, not into a new one."""
        if not self.count:
            return True
        if not 0 < max_bytes <= MAX_NODE_BYTES:
            max_bytes = MAX_NODE_BYTES
        if self.bytes + sum(map(len, pairs)) >= max_bytes:
            return False
        return not max_entries or self.count < max_entries

    def add(self, entry_id: int, pairs: Sequence[bytes]) -> None:
        """Add the size of one entry."""
        fields = pairs[::2]
        if not self.count:
            self._first_id, self._first_fields = entry_id, fields
            self._rest = 7 + 2 + integer_size(len(fields)) + sum(map(_size_of, fields)) + 2
        ms = (entry_id >> 64) - (self._first_id >> 64)
        seq = (entry_id & 0xFFFFFFFFFFFFFFFF) - (self._first_id & 0xFFFFFFFFFFFFFFFF)
        size = 2 + integer_size(ms) + integer_size(seq) + sum(map(_size_of, pairs[1::2]))
        elements = len(fields) + 3
        if fields != self._first_fields:
            size += integer_size(len(fields)) + sum(map(_size_of, fields))
            elements += len(fields) + 1
        self._rest += size + integer_size(elements)
        self.count += 1
        self.bytes = self._rest + integer_size(self.count)
