"""A RESP reply as lines, with numpy: the bounds of each line, and the numbers in lines.

All functions work on whole arrays and create no Python object per line. A reply with a bare line feed, or a line end
inside a value, does not fit this view: the caller notices it because the lengths in the headers disagree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]
Word = TypeVar("Word", np.uint32, np.uint64)
Index: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

STAR, DOLLAR, COLON, DASH = 0x2A, 0x24, 0x3A, 0x2D
_CR, _LF, _ZERO = 0x0D, 0x0A, 0x30


class ShapeError(Exception):
    """The reply does not have the shape that the vectorised pass reads: the exact path must read it."""


# For each length below 100, the first four bytes of its header line: `$7\\r\\n`, `$42\\r`.
_HEADER_WORD = np.array([int.from_bytes((b"$%d\r\n" % n)[:4], "little") for n in range(100)], np.uint32)


@dataclass(frozen=True)
class Lines:
    data: Bytes  # the reply
    begin: Index  # the first byte of each line
    end: Index  # the byte after its last one: its CR

    @classmethod
    def split(cls, reply: memoryview | bytes) -> Lines:
        """Return the lines. Raises ShapeError if a line feed has no carriage return before it."""
        data = np.frombuffer(reply, dtype=np.uint8)
        feeds = np.flatnonzero(data == _LF)
        if len(feeds) == 0 or feeds[-1] != len(data) - 1 or feeds[0] == 0 or not (data[feeds - 1] == _CR).all():
            raise ShapeError
        begin = np.empty_like(feeds)
        begin[0] = 0
        begin[1:] = feeds[:-1] + 1
        return cls(data, begin, feeds - 1)

    def first_byte(self) -> Bytes:
        return self.data[self.begin]

    def headers_match(self, header: Index) -> bool:
        """Whether each of these lines is `$n`, with n the length of the next line."""
        length = self.end[header + 1] - self.begin[header + 1]
        short = length < len(_HEADER_WORD)
        if short.all():
            return bool((self.words(np.uint32)[self.begin[header]] == _HEADER_WORD[length]).all())
        long = header[~short]
        return (
            self.headers_match(header[short])
            and bool((self.data[self.begin[long]] == DOLLAR).all())
            and bool((self.numbers(long) == length[~short]).all())
        )

    def words(self, kind: type[Word]) -> npt.NDArray[Word]:
        """Return the data as little-endian words, one starting at each byte: one lookup compares 4 or 8 bytes."""
        size = np.dtype(kind).itemsize
        return np.ndarray((max(0, len(self.data) - size + 1),), np.dtype(kind).newbyteorder("<"), self.data, 0, (1,))

    def numbers(self, line: Index | slice, skip: int = 1) -> Index:
        """Return the unsigned number in each of these lines after `skip` bytes. Raises ShapeError."""
        return digits(self.data, self.begin[line] + skip, self.end[line])


def digits(data: Bytes, begin: Index, end: Index) -> Index:
    """Return the unsigned numbers of 1 to 18 digits at [begin, end). Raises ShapeError for any other bytes."""
    if len(begin) == 0:
        return np.empty(0, np.int64)
    width = end - begin
    longest = int(width.max())
    if int(width.min()) < 1 or longest > 18:
        raise ShapeError
    value = np.zeros(len(begin), np.int64)
    if int(width.min()) == longest:
        for place in range(longest):
            digit = data[begin + place] - _ZERO  # wraps for bytes below '0'
            if (digit > 9).any():
                raise ShapeError
            value = value * 10 + digit
        return value
    for place in range(longest):
        inside = width > place
        digit = data[np.where(inside, begin + place, begin)] - _ZERO
        if (digit > 9).any():
            raise ShapeError
        value = np.where(inside, value * 10 + digit, value)
    return value


# -- the values of a field where they lie in the reply, without a copy -------------------------------------------------


@dataclass(frozen=True)
class Spans:
    data: Bytes  # of replies
    begin: Index  # the bounds of each row's value in it
    end: Index

    @classmethod
    def concatenate(cls, parts: Sequence[Spans]) -> Spans:
        """Return the values of all parts, which lie in the same data."""
        if len(parts) == 1:
            return parts[0]
        begin = np.concatenate([part.begin for part in parts])
        return cls(parts[0].data, begin, np.concatenate([part.end for part in parts]))

    def first(self) -> bytes:
        return self.data[self.begin[0] : self.end[0]].tobytes()

    def windows(self, begin: Index, size: int) -> Bytes:
        """Return (rows × size) bytes that begin there. Raises IndexError if they exceed the data."""
        windows = np.ndarray((max(0, len(self.data) - size + 1),), f"V{size}", self.data, 0, (1,))[begin]
        matrix: Bytes = windows.view(np.uint8).reshape(len(begin), size)
        return matrix
