"""The headers of RESP parts: `$15` before a string of fifteen bytes, `*4` before an array of four."""

from __future__ import annotations

import numpy as np

from spark_streams.wire.entries.lines import Bytes, Index, Mask, ShapeError

HEADER = 6  # bytes of a header that `bounds_of` looks at: `$0␍␍` is the shortest with what must follow
_CR, _LF, _ZERO = b"\r\n0"


def number_at(reply: memoryview | bytes, at: int, kind: bytes) -> tuple[int, int]:
    """The number in the header here, and where what follows it begins. Raises ShapeError where there is none."""
    head = bytes(reply[at : at + 24])
    end = head.find(b"\r\n")
    digits = head[1:end]
    if end < 2 or head[:1] != kind or not digits.isdigit() or (digits[:1] == b"0" and end > 2):
        raise ShapeError
    return int(digits), at + end + 2


def bounds_of(data: Bytes, header: Bytes, at: Index, kind: bytes = b"$") -> tuple[Index, Index]:
    """Where what these headers announce begins, and that plus the number in them: the end, for a string.

    header: (rows × HEADER) bytes, found in data at `at`. Raises ShapeError where one is no header.
    """
    one = header[:, 1] - _ZERO  # wraps for bytes below '0'
    short = header[:, 2] == _CR
    if (header[:, 0] != kind[0]).any() or (one > 9).any():
        raise ShapeError
    number = one.astype(np.int64)
    if not short.all():
        return _longer(data, header, at, kind, number, short)
    if (header[:, 3] != _LF).any():
        raise ShapeError
    begin = at + 4
    return begin, begin + number


def _longer(data: Bytes, header: Bytes, at: Index, kind: bytes, number: Index, short: Mask) -> tuple[Index, Index]:
    """The same where some have more than one digit."""
    two, three = header[:, 2] - _ZERO, header[:, 3] - _ZERO
    feed = np.where(short, header[:, 3], header[:, 4])
    begin = at + np.where(short, 4, 5)
    more = ~short
    if ((number == 0) & more).any() or (two[more] > 9).any():
        raise ShapeError
    number = np.where(short, number, 10 * number + two)
    long = more & (header[:, 3] != _CR)
    if long.any():
        if (three[long] > 9).any():
            raise ShapeError
        feed = np.where(long, header[:, 5], feed)
        begin = np.where(long, at + 6, begin)
        number = np.where(long, 10 * number + three, number)
        longest = np.flatnonzero(long & (header[:, 4] != _CR))
        if len(longest):
            number[longest], begin[longest] = _longest(data, at[longest])
            feed[longest] = _LF
    if (feed != _LF).any():
        raise ShapeError
    return begin, begin + number


def _longest(data: Bytes, at: Index) -> tuple[Index, Index]:
    """(the number, where what follows begins) of headers with four to nine digits; a string has 512 MB at most.

    Raises IndexError where the reply ends sooner than so long a string could.
    """
    size = 12  # kind, nine digits, line end
    header = np.ndarray((len(data) - size + 1,), f"V{size}", data, 0, (1,))[at].view(np.uint8).reshape(len(at), size)
    number = np.zeros(len(at), np.int64)
    digits = np.zeros(len(at), np.int64)
    going = np.ones(len(at), np.bool_)
    for column in range(1, 10):
        digit = header[:, column] - _ZERO
        going &= digit <= 9
        number = np.where(going, 10 * number + digit, number)
        digits += going
    row = np.arange(len(at))
    if (header[row, digits + 1] != _CR).any() or (header[row, digits + 2] != _LF).any():
        raise ShapeError
    return number, at + digits + 3
