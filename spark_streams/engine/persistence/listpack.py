"""Redis' listpack: how the entries of a stream's node are packed in a dump.

    listpack   total bytes 4 | elements 2 | element … | ff            little endian
    element    encoding and data | its length, backwards

    0xxxxxxx  number 0 … 127           10xxxxxx  string up to 63 bytes       1110xxxx +1  string up to 4,095
    110xxxxx +1  13-bit number         f0 +4  longer string                  f1 f2 f3 f4  number of 2, 3, 4, 8 bytes

Numbers come out as their decimal text: to Redis, too, an element is a string that may be stored shorter.
Source: `listpack.c`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_INTEGER = re.compile(rb"0|-?[1-9][0-9]{0,18}")
_SIZES = {0xF1: 2, 0xF2: 3, 0xF3: 4, 0xF4: 8}


class BadDataError(ValueError):
    """The bytes are not what they should be."""


class TooLargeError(Exception):
    """The value would take more memory than it may."""


PER_ELEMENT = 50  # bytes at least that an element takes in memory beside its own


def pack(elements: Iterable[bytes | int]) -> bytes:
    """A listpack. Strings that are numbers are stored as such."""
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
    out[4:6] = min(count, 0xFFFF).to_bytes(2, "little")
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
    # 16,383 and the like take a byte more than they need, as in Redis.
    return 1 if length <= 127 else 2 if length < 16383 else 3 if length < 2097151 else 4 if length < 268435455 else 5


def unpack(data: bytes, most: int = 1 << 62) -> list[bytes]:
    """The elements of a listpack. Raises BadDataError, and TooLargeError if they are more than `most`."""
    if len(data) < 7 or int.from_bytes(data[:4], "little") != len(data) or data[-1] != 0xFF:
        raise BadDataError("not a listpack")
    elements: list[bytes] = []
    at, end = 6, len(data) - 1
    while at < end:
        code = data[at]
        start = at
        if code < 0x80:
            elements.append(b"%d" % code)
            at += 1
        elif code < 0xC0:
            at += 1 + (code & 63)
            elements.append(data[start + 1 : at])
        elif code < 0xE0:
            value = (code & 31) << 8 | data[at + 1]
            elements.append(b"%d" % (value - 8192 if value >= 4096 else value))
            at += 2
        elif code < 0xF0:
            at += 2 + ((code & 15) << 8 | data[at + 1])
            elements.append(data[start + 2 : at])
        elif code == 0xF0:
            at += 5 + int.from_bytes(data[at + 1 : at + 5], "little")
            elements.append(data[start + 5 : at])
        elif code in _SIZES:
            at += 1 + _SIZES[code]
            elements.append(b"%d" % int.from_bytes(data[start + 1 : at], "little", signed=True))
        else:
            raise BadDataError("not an element of a listpack")
        at += _back_length_bytes(at - start)
        if at > end:
            raise BadDataError("an element runs over the listpack")
        if len(elements) > most:
            raise TooLargeError
    count = int.from_bytes(data[4:6], "little")
    if count not in (0xFFFF, len(elements)):
        raise BadDataError("a listpack counts wrongly")
    return elements
