"""The headers of RESP parts: `$15` before a string of fifteen bytes, `*4` before an array of four."""

from __future__ import annotations

import numpy as np

from spark_streams.wire.entries.lines import Bytes, Index, Mask, ShapeError

HEADER = 6  # bytes of a header that `bounds_of` reads: `$0␍␍` is the shortest with its required next bytes
_CR, _LF, _ZERO = b"\r\n0"


def number_at(reply: memoryview | bytes, offset: int, kind: bytes) -> tuple[int, int]:
    """Return the number in the header at this offset, and the offset behind it.

    Raises ShapeError if it is no header.
    """
    head = bytes(reply[offset : offset + 24])
    end = head.find(b"\r\n")
    digits = head[1:end]
    if end < 2 or head[:1] != kind or not digits.isdigit() or (digits[:1] == b"0" and end > 2):
        raise ShapeError
    return int(digits), offset + end + 2


def bounds_of(data: Bytes, header: Bytes, offset: Index, kind: bytes = b"$") -> tuple[Index, Index]:
    """Return the offset behind each header, and that plus the number in the header: the end, for a string.

    header: (rows × HEADER) bytes at `offset` in data. Raises ShapeError if one of them is no header.
    """
    first = header[:, 1] - _ZERO  # wraps for bytes below '0'
    short = header[:, 2] == _CR
    if (header[:, 0] != kind[0]).any() or (first > 9).any():
        raise ShapeError
    number = first.astype(np.int64)
    if not short.all():
        return _longer(data, header, offset, kind, number, short)
    if (header[:, 3] != _LF).any():
        raise ShapeError
    begin = offset + 4
    return begin, begin + number


def _longer(data: Bytes, header: Bytes, offset: Index, kind: bytes, number: Index, short: Mask) -> tuple[Index, Index]:
    """As `bounds_of`, if some numbers have more than one digit."""
    second, third = header[:, 2] - _ZERO, header[:, 3] - _ZERO
    feed = np.where(short, header[:, 3], header[:, 4])
    begin = offset + np.where(short, 4, 5)
    more = ~short
    if ((number == 0) & more).any() or (second[more] > 9).any():
        raise ShapeError
    number = np.where(short, number, 10 * number + second)
    long = more & (header[:, 3] != _CR)
    if long.any():
        if (third[long] > 9).any():
            raise ShapeError
        feed = np.where(long, header[:, 5], feed)
        begin = np.where(long, offset + 6, begin)
        number = np.where(long, 10 * number + third, number)
        longest = np.flatnonzero(long & (header[:, 4] != _CR))
        if len(longest):
            number[longest], begin[longest] = _longest(data, offset[longest])
            feed[longest] = _LF
    if (feed != _LF).any():
        raise ShapeError
    return begin, begin + number


def _longest(data: Bytes, offset: Index) -> tuple[Index, Index]:
    """Return (number, offset behind the header) of headers with four to nine digits; a string has at most 512 MB.

    Raises IndexError if the reply ends before such a string could end.
    """
    size = 12  # kind, nine digits, line end
    header = (
        np.ndarray((len(data) - size + 1,), f"V{size}", data, 0, (1,))[offset].view(np.uint8).reshape(len(offset), size)
    )
    number = np.zeros(len(offset), np.int64)
    digits = np.zeros(len(offset), np.int64)
    going = np.ones(len(offset), np.bool_)
    for column in range(1, 10):
        digit = header[:, column] - _ZERO
        going &= digit <= 9
        number = np.where(going, 10 * number + digit, number)
        digits += going
    row = np.arange(len(offset))
    if (header[row, digits + 1] != _CR).any() or (header[row, digits + 2] != _LF).any():
        raise ShapeError
    return number, offset + digits + 3
