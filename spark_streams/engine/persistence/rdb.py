"""A stream as bytes in Redis' format, as DUMP returns and RESTORE accepts it. Other types are refused.

    type 1 | value … | RDB version 2, little endian | CRC-64 of all before it 8, little endian

A stream (type 15; since Redis 7.0 19, 7.2 21, 8.6 26, 8.8 27):

    nodes n | ( id 16, big endian | listpack ) …
    length | last id | first id | greatest deleted id | entries added             from 19 on
    groups n | ( name | last id | entries read (from 19 on)
                 | pending n | ( id 16 | time 8 | deliveries ) …
                 | consumers n | ( name | seen 8 | active 8 (from 21 on) | pending n | id 16 … ) …
                 | released n | id 16 … (from 27 on) ) …
    seconds | messages | producers n | ( name | messages n | ( message | id ) … ) …
                 | messages ever remembered | recognised                            from 26 on: XADD IDMP

and in a node's listpack

    entries | deleted | fields n | field … | 0
    flags | ms | seq | [fields n | field value …  or, if the fields are the first entry's,  value …] | elements

IDs in the listpack are differences to the node's ID. RESTORE reads the streams of Redis 5.0 to 8.10. DUMP writes for
Redis 7.0; a stream that remembers messages (XADD IDMP) is written for 8.6, a stream with released entries (XNACK) for
8.8. Older versions do not support these. Sources: `rdb.c`, `t_stream.c`, `cluster.c`.
"""

from __future__ import annotations

from spark_streams.base.ids import U64_MAX
from spark_streams.engine.persistence.listpack import (
    HEADER,
    PER_ELEMENT,
    BadDataError,
    TooLargeError,
    most_elements,
    unpack,
)

# Types of streams, by their names in `rdb.h`.
STREAM, STREAM_2, STREAM_3, STREAM_4, STREAM_5 = 15, 19, 21, 26, 27
DELETED, SAME_FIELDS = 1, 2  # flags of an entry in a node
_COMPRESSED = 3  # the special encoding of a string that is compressed by LZF
_MAX_RATIO = 90  # highest compression of LZF: 264 bytes from 3


# Writing


def put_length(out: bytearray, value: int) -> None:
    """Write a number below 2^64 in as few bytes as possible."""
    if value < 1 << 6:
        out.append(value)
    elif value < 1 << 14:
        out += (value | 1 << 14).to_bytes(2, "big")
    elif value < 1 << 32:
        out.append(0x80)
        out += value.to_bytes(4, "big")
    else:
        out.append(0x81)
        out += value.to_bytes(8, "big")


def put_string(out: bytearray, text: bytes) -> None:
    """Write a string without compression."""
    put_length(out, len(text))
    out += text


def put_id(out: bytearray, entry_id: int) -> None:
    """Write an entry ID as two numbers."""
    put_length(out, entry_id >> 64)
    put_length(out, entry_id & U64_MAX)


# Reading


class Source:
    """Bytes and the read position. Raises BadDataError if they end too early.

    `memory_left` is the memory that the value may still take. Each part is
    charged before it is created. Raises TooLargeError.
    """

    __slots__ = ("data", "memory_left", "position")

    def __init__(self, data: bytes, memory_limit: int) -> None:
        self.data = data
        self.position = 0
        self.memory_left = memory_limit

    def charge(self, size: int) -> None:
        """Charge bytes of memory that the value is about to take."""
        self.memory_left -= size
        if self.memory_left < 0:
            raise TooLargeError

    def listpack(self) -> list[bytes]:
        """Return the elements of a listpack. They are not charged: the entries that are made of them are."""
        memory_left = self.memory_left
        elements = unpack(self.string(), self.memory_left)
        self.memory_left = memory_left
        return elements

    def skip_listpack(self) -> int:
        """Skip a listpack, which is not expanded. Return how many elements it has at most."""
        value, special = self._length()
        if not special:
            return most_elements(self.take(value)[:HEADER], value)
        if value != _COMPRESSED:
            raise BadDataError("not a listpack")
        packed, plain = self.length(), self.length()
        return most_elements(_expand(self.take(packed), plain, HEADER), plain)

    def take(self, count: int) -> bytes:
        """Read this number of bytes."""
        end = self.position + count
        if end > len(self.data):
            raise BadDataError("ends too early")
        taken = self.data[self.position : end]
        self.position = end
        return taken

    def length(self) -> int:
        """Read a number that is no special encoding."""
        value, special = self._length()
        if special:
            raise BadDataError("a string where a number belongs")
        return value

    def count(self, min_bytes: int = 1) -> int:
        """Read a count of parts of at least `min_bytes` each, and check it against the remaining data."""
        value = self.length()
        if value * min_bytes > len(self.data) - self.position:
            raise BadDataError("a count exceeds the data")
        return value

    def _length(self) -> tuple[int, bool]:
        first = self.take(1)[0]
        kind = first >> 6
        if kind == 0:
            return first & 63, False
        if kind == 1:
            return (first & 63) << 8 | self.take(1)[0], False
        if kind == 3:
            return first & 63, True
        if first == 0x80:
            return int.from_bytes(self.take(4), "big"), False
        if first == 0x81:
            return int.from_bytes(self.take(8), "big"), False
        raise BadDataError("not a length")

    def string(self) -> bytes:
        """Read a string in any of its encodings."""
        value, special = self._length()
        if not special:
            self.charge(min(value, len(self.data)) + PER_ELEMENT)
            return self.take(value)
        if value < 3:
            self.charge(PER_ELEMENT)
            return b"%d" % int.from_bytes(self.take(1 << value), "little", signed=True)
        if value != _COMPRESSED:
            raise BadDataError("not a string")
        packed, plain = self.length(), self.length()
        if plain > packed * _MAX_RATIO:
            raise BadDataError("a compressed string announces too much")
        self.charge(plain + PER_ELEMENT)
        return _expand(self.take(packed), plain)

    def number(self) -> int:
        """Read a number that fits into an integer reply."""
        value = self.length()
        if value >> 63:
            raise BadDataError("a number above 2^63-1")
        return value

    def id(self) -> int:
        """Read an entry ID as two numbers."""
        return self.length() << 64 | self.length()

    def raw_id(self) -> int:
        """Read an entry ID as sixteen bytes."""
        return int.from_bytes(self.take(16), "big")

    def time(self) -> int:
        """Read a time in milliseconds; -1: never."""
        value = int.from_bytes(self.take(8), "little", signed=True)
        if value < -1:
            raise BadDataError("a time before 1970")
        return value


def _expand(data: bytes, length: int, enough: int | None = None) -> bytes:
    """Decompress LZF: runs of plain bytes, and references to bytes up to 8 KB before.

    enough: return after this number of bytes.
    """
    out = bytearray()
    position = 0
    while position < len(data) and len(out) <= length:
        if enough is not None and len(out) >= enough:
            return bytes(out[:enough])
        control = data[position]
        position += 1
        if control < 32:
            out += data[position : position + control + 1]
            position += control + 1
            continue
        count = control >> 5
        if count == 7:
            count += data[position]
            position += 1
        start = len(out) - ((control & 31) << 8) - data[position] - 1
        position += 1
        count += 2
        if start < 0:
            raise BadDataError("a compressed string refers to nothing")
        if start + count <= len(out):
            out += out[start : start + count]
        else:
            piece = out[start:]
            out += (piece * (count // len(piece) + 1))[:count]
    if position != len(data) or len(out) != length:
        raise BadDataError("a compressed string has another length")
    return bytes(out)
