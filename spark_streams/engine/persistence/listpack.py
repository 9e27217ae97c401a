"""Redis' listpack: the encoding of a stream node's entries in a dump.

    listpack   total bytes 4 | elements 2 | element … | ff            little endian
    element    encoding and data | its length, backwards

    0xxxxxxx  number 0 … 127           10xxxxxx  string up to 63 bytes       1110xxxx +1  string up to 4,095
    110xxxxx +1  13-bit number         f0 +4  longer string                  f1 f2 f3 f4  number of 2, 3, 4, 8 bytes

Numbers are returned as decimal text: in Redis, too, an element is a string that may be stored shorter.
Source: `listpack.c`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

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
