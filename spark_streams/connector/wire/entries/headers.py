"""The headers of RESP parts: `$15` before a string of fifteen bytes, `*4` before an array of four."""

from __future__ import annotations

import numpy as np

from spark_streams.connector.wire.entries.lines import Bytes, Index, ShapeError

NUMBER = 5  # bytes after a header's kind that `bounds_of` reads: `7␍␊` is the shortest with its required next bytes
_CR, _LF, _ZERO = b"\r\n0"


_LINE_END = int.from_bytes(b"\r\n", "little")
_BEYOND = 1 << 40  # no reply has so many bytes: what follows a string of this length cannot be read


def _short_numbers() -> Index:
    """Return the numbers below 100 by their first two bytes, a digit and ␍, or two digits; _BEYOND for other bytes."""
    numbers = np.full(1 << 16, _BEYOND, np.int64)
    for number in range(100):
        numbers[int.from_bytes((b"%d\r" % number)[:2], "little")] = number
    return numbers


_SHORT = _short_numbers()


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


def bounds_of(data: Bytes, number: Bytes, offset: Index) -> tuple[Index, Index]:
    """Return the offset behind each header, and that plus the number in the header: the end, for a string.

    number: (rows × NUMBER) bytes at `offset` in data, after the header's kind. If one is no number, raises ShapeError
    or returns an end that no reply has.
    """
    short = number[:, 1] == _CR
    shorts = np.count_nonzero(short)
    if shorts == len(short):
        begin, right = offset + 3, number[:, 2] == _LF
    elif not shorts:
        begin, right = offset + 4, number[:, 2:4].view("<u2")[:, 0] == _LINE_END
    else:
        begin = offset + np.where(short, 3, 4)
        right = np.where(short, number[:, 2], number[:, 3]) == _LF
        right &= short | (number[:, 2] == _CR)
    if np.count_nonzero(right) < len(right):
        return _longer(data, number, offset)
    return begin, begin + _SHORT.take(number[:, :2].view("<u2")[:, 0].astype(np.intp))


def _longer(data: Bytes, number: Bytes, offset: Index) -> tuple[Index, Index]:
    """As `bounds_of`, if some numbers have more than two digits."""
    first, second, third = (number[:, column] - _ZERO for column in range(3))  # wraps for bytes below '0'
    if (first > 9).any():
        raise ShapeError
    short = number[:, 1] == _CR
    value = first.astype(np.int64)
    feed = np.where(short, number[:, 2], number[:, 3])
    begin = offset + np.where(short, 3, 4)
    more = ~short
    if ((value == 0) & more).any() or (second[more] > 9).any():
        raise ShapeError
    value = np.where(short, value, 10 * value + second)
    long = more & (number[:, 2] != _CR)
    if long.any():
        if (third[long] > 9).any():
            raise ShapeError
        feed = np.where(long, number[:, 4], feed)
        begin = np.where(long, offset + 5, begin)
        value = np.where(long, 10 * value + third, value)
        longest = np.flatnonzero(long & (number[:, 3] != _CR))
        if len(longest):
            value[longest], begin[longest] = _longest(data, offset[longest])
            feed[longest] = _LF
    if (feed != _LF).any():
        raise ShapeError
    return begin, begin + value


def _longest(data: Bytes, offset: Index) -> tuple[Index, Index]:
    """Return (number, offset behind it) of numbers with four to nine digits; a string has at most 512 MB.

    Raises IndexError if the reply ends before such a string could end.
    """
    size = 11  # nine digits, line end
    header = (
        np.ndarray((len(data) - size + 1,), f"V{size}", data, 0, (1,))[offset].view(np.uint8).reshape(len(offset), size)
    )
    number = np.zeros(len(offset), np.int64)
    digits = np.zeros(len(offset), np.int64)
    going = np.ones(len(offset), np.bool_)
    for column in range(9):
        digit = header[:, column] - _ZERO
        going &= digit <= 9
        number = np.where(going, 10 * number + digit, number)
        digits += going
    row = np.arange(len(offset))
    if (header[row, digits] != _CR).any() or (header[row, digits + 1] != _LF).any():
        raise ShapeError
    return number, offset + digits + 2
