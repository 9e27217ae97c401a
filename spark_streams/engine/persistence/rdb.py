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

import re
from collections.abc import Iterable

from spark_streams.base.ids import U64_MAX

# CRC-64 with Jones' polynomial, as Redis puts it at the end of a dump.
#
# Reflected, not inverted: the CRC of `123456789` is e9c6d914c4b8d9ca. A table lookup per byte is slow in Python, so
# long data is cut into lanes of equal length, which are computed together, one byte of each at a time. The eight bytes
# of all registers are eight byte strings; `bytes.translate` is the lookup, and long integers do the exclusive-or.
#
#     lane 0   b0  b1  b2 …        register bytes   r0: [lane 0, lane 1, lane 2 …]
#     lane 1   b0  b1  b2 …                         r1: [ … ]
#     lane 2   b0  b1  b2 …                         …
#
# Then the lanes are joined. To append a lane, the CRC so far is advanced over as many zeros as the lane is long, and
# xored with the CRC of the lane. Advancing is linear in the register, so it takes eight lookups.

_POLYNOMIAL = 0x95AC9329AC4BC9B5  # ad93d23594c935a9 with its bits reflected
_LANES = 2048
_LONG = 64 * 1024  # bytes from which on lanes are faster


def _table() -> list[int]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _table()
_PLANES = [bytes(value >> 8 * place & 0xFF for value in _TABLE) for place in range(8)]


def crc64(data: bytes, crc: int = 0) -> int:
    """Return the CRC of the data, continuing from the CRC of earlier data."""
    if len(data) >= _LONG:
        length = len(data) // _LANES
        for lane in _lanes(data[: length * _LANES], length):
            crc = _skip(crc, length) ^ lane
        data = data[length * _LANES :]
    table = _TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc


def _lanes(data: bytes, length: int) -> list[int]:
    """Return the CRC of each lane of this length."""
    registers = [bytes(_LANES)] * 8
    for offset in range(length):
        low = _xor(registers[0], data[offset::length])
        registers = [_xor(registers[place + 1], low.translate(_PLANES[place])) for place in range(7)]
        registers.append(low.translate(_PLANES[7]))
    return [int.from_bytes(bytes(lane), "little") for lane in zip(*registers, strict=True)]


def _xor(first: bytes, second: bytes) -> bytes:
    return (int.from_bytes(first, "little") ^ int.from_bytes(second, "little")).to_bytes(_LANES, "little")


_skips: dict[int, list[list[int]]] = {}


def _skip(crc: int, zeros: int) -> int:
    """Return the CRC after this number of zero bytes."""
    tables = _skips.get(zeros)
    if tables is None:
        _skips.clear()
        tables = _skips[zeros] = _skip_tables(zeros)
    return _apply(tables, crc)


def _apply(tables: list[list[int]], crc: int) -> int:
    moved = 0
    for place in range(8):
        moved ^= tables[place][crc >> 8 * place & 0xFF]
    return moved


def _skip_tables(zeros: int) -> list[list[int]]:
    """Return eight tables, one for each byte of the register, by squaring: over n zeros, then over 2n."""
    step = [[_one_zero(byte << 8 * place) for byte in range(256)] for place in range(8)]
    tables: list[list[int]] | None = None
    while zeros:
        if zeros & 1:
            tables = step if tables is None else [[_apply(step, value) for value in table] for table in tables]
        zeros >>= 1
        if zeros:
            step = [[_apply(step, value) for value in table] for table in step]
    assert tables is not None
    return tables


def _one_zero(crc: int) -> int:
    return _TABLE[crc & 0xFF] ^ crc >> 8


# Redis' listpack: the encoding of a stream node's entries in a dump.
#
#     listpack   total bytes 4 | elements 2 | element … | ff            little endian
#     element    encoding and data | its length, backwards
#
#     0xxxxxxx  number 0 … 127           10xxxxxx  string up to 63 bytes       1110xxxx +1  string up to 4,095
#     110xxxxx +1  13-bit number         f0 +4  longer string                  f1 f2 f3 f4  number of 2, 3, 4, 8 bytes
#
# Numbers are returned as decimal text: in Redis, too, an element is a string that may be stored shorter.
# Source: `listpack.c`.


_INTEGER = re.compile(rb"0|-?[1-9][0-9]{0,18}")
_SIZES = {0xF1: 2, 0xF2: 3, 0xF3: 4, 0xF4: 8}
_UNKNOWN = 0xFFFF  # a count that does not fit into its two bytes
_SMALL_NUMBERS = [b"%d" % number for number in range(0x80)]


class BadDataError(ValueError):
    """The bytes are not a valid encoding."""


class TooLargeError(Exception):
    """The value would take more memory than allowed."""


class TooManyElementsError(Exception):
    """The listpacks have more elements than allowed for the size of their payload."""


HEADER = 6  # bytes before the first element
PER_ELEMENT = 50  # bytes of memory that an element takes at least, in addition to its own


def pack(elements: Iterable[bytes | int]) -> bytes:
    """Return a listpack. Strings that are numbers are stored as numbers."""
    out = bytearray(6)
    count = 0
    for element in elements:
        start = len(out)
        if isinstance(element, int):
            _put_integer(out, element)
        elif len(element) < 21 and _INTEGER.fullmatch(element) and -(1 << 63) <= int(element) < 1 << 63:
            _put_integer(out, int(element))
        else:
            _put_string(out, element)
        _put_back_length(out, len(out) - start)
        count += 1
    out.append(0xFF)
    out[0:4] = len(out).to_bytes(4, "little")
    out[4:6] = min(count, _UNKNOWN).to_bytes(2, "little")
    return bytes(out)


def _put_integer(out: bytearray, value: int) -> None:
    if 0 <= value <= 127:
        out.append(value)
    elif -4096 <= value <= 4095:
        value &= 0x1FFF
        out += bytes((0xC0 | value >> 8, value & 0xFF))
    else:
        for code, size in _SIZES.items():
            if -(1 << 8 * size - 1) <= value < 1 << 8 * size - 1:
                out.append(code)
                out += value.to_bytes(size, "little", signed=True)
                return


def _put_string(out: bytearray, text: bytes) -> None:
    length = len(text)
    if length < 64:
        out.append(0x80 | length)
    elif length < 4096:
        out += bytes((0xE0 | length >> 8, length & 0xFF))
    else:
        out.append(0xF0)
        out += length.to_bytes(4, "little")
    out += text


def _put_back_length(out: bytearray, length: int) -> None:
    if length <= 127:
        out.append(length)
        return
    shift = _back_length_bytes(length) * 7 - 7
    out.append(length >> shift)
    while shift:
        shift -= 7
        out.append(length >> shift & 127 | 128)


def _back_length_bytes(length: int) -> int:
    # As in Redis, the limits are one too low: 16,383 takes a byte more than it needs.
    return 1 if length <= 127 else 2 if length < 16383 else 3 if length < 2097151 else 4 if length < 268435455 else 5


def most_elements(header: bytes, size: int) -> int:
    """Return how many elements a listpack of `size` bytes has at most, by its first six bytes.

    `unpack` refuses a listpack that has more. An element takes two bytes at least.
    """
    count = int.from_bytes(header[4:HEADER], "little")
    fitting = max(size - HEADER - 1, 0) // 2
    return fitting if count == _UNKNOWN else min(count, fitting)


def unpack(data: bytes, memory_limit: int = 1 << 62) -> list[bytes]:
    """Return the elements of a listpack. Raises BadDataError, TooLargeError if they take over `memory_limit` bytes."""
    expected = most_elements(data, len(data))
    affordable = memory_limit // PER_ELEMENT
    stop = min(expected, affordable)
    if len(data) < 7 or int.from_bytes(data[:4], "little") != len(data) or data[-1] != 0xFF:
        raise BadDataError("not a listpack")
    elements: list[bytes] = []
    position, end = HEADER, len(data) - 1
    while position < end and len(elements) <= stop:
        code = data[position]
        start = position
        if code < 0x80:
            elements.append(_SMALL_NUMBERS[code])
            position += 2
            continue
        if code < 0xC0:
            position += 1 + (code & 63)
            elements.append(data[start + 1 : position])
        elif code < 0xE0:
            value = (code & 31) << 8 | data[position + 1]
            elements.append(b"%d" % (value - 8192 if value >= 4096 else value))
            position += 2
        elif code < 0xF0:
            position += 2 + ((code & 15) << 8 | data[position + 1])
            elements.append(data[start + 2 : position])
        elif code == 0xF0:
            position += 5 + int.from_bytes(data[position + 1 : position + 5], "little")
            elements.append(data[start + 5 : position])
        elif code in _SIZES:
            position += 1 + _SIZES[code]
            elements.append(b"%d" % int.from_bytes(data[start + 1 : position], "little", signed=True))
        else:
            raise BadDataError("not an element of a listpack")
        position += _back_length_bytes(position - start)
    if position > end:
        raise BadDataError("an element ends behind the listpack")
    if len(elements) > affordable:
        raise TooLargeError
    if int.from_bytes(data[4:HEADER], "little") not in (_UNKNOWN, len(elements)):
        raise BadDataError("a listpack has a wrong count")
    return elements


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


class RdbSource:
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
