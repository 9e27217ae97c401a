"""The vectorised way to read entries: all of them at once, field by field, each step proved (FACTS A1, A2).

An entry in a RESP2 reply, where ␍ stands for a line end:

    *2␍$15␍ 1700000000000-0 ␍*4␍$4␍year␍ $4␍ 2013 ␍$7␍carrier␍ $2␍ UA ␍
    └──┬──┘ └──── id ─────┘ └─ segment ┘ └┬┘ └──┘ └ segment ─┘          └ the next entry's *2, or a reply's *n
     start                             header  value

Entries with the same names in the same order (a shape) differ only in their headers and values. So the first entry is
read in Python, and gives the segments; every other entry is then walked alongside: the segment must be there byte by
byte, the header after it says where the value begins and ends, and there the next segment must be. Entries that leave
the path are another shape, and take part in the next round; a deleted entry's only segment is ␍*-1.

Where entries start is guessed: at each `*2␍$` that has an id and `*` behind it. The walk proves the guess, because
each entry must end where the next one starts, from the reply's first byte to its last: that is then the only reading
that RESP allows. Lengths, not line ends, lead from part to part, so a value may hold anything; only one that looks
like an entry's start makes a wrong guess, which is noticed, and the exact way reads the reply.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from spark_streams.wire.lines import Bytes, Index, Mask, ShapeError

_MOST_SHAPES = 64  # in one go: with more of them the exact way is as fast
_PIECE = 64  # bytes of a segment that are compared at once
_HEADER = 6  # bytes after a segment that are certain to be there: `$0␍␍`
_BLOCK = 1 << 20  # bytes that are searched at once
_STAR, _TWO, _DOLLAR, _CR, _LF, _ZERO = b"*2$\r\n0"
_START = int.from_bytes(b"*2\r\n$", "little")
_START_BITS = np.uint64((1 << 40) - 1)
_NIL = b"\r\n*-1"


@dataclass
class Shape:
    """Entries with the same names in the same order. names: None for deleted entries; rows: which, ascending;
    begin, end: per field the bounds of each row's value."""

    names: list[bytes] | None
    rows: Index
    begin: list[Index] = field(default_factory=list)
    end: list[Index] = field(default_factory=list)

    def keep(self, mask: Mask) -> None:
        """Forget the rows that left the path."""
        self.rows = self.rows[mask]
        self.begin = [bounds[mask] for bounds in self.begin]
        self.end = [bounds[mask] for bounds in self.end]


class Walk:
    """So many replies back to back, read at once. Raises ShapeError where a reading cannot be proved.

    begin, end: the bounds of each entry's id; shapes: the entries by shape; counts: entries per reply.
    """

    def __init__(self, reply: memoryview | bytes, replies: int = 1) -> None:
        self._reply = reply
        self.data: Bytes = np.frombuffer(reply, np.uint8)
        if len(self.data) < 32:
            raise ShapeError
        try:
            start = self._find_starts()
            finish = self._walk_all()
        except IndexError:  # a length led beyond the reply's end
            raise ShapeError from None
        self.counts = self._chain(start, finish, replies)

    # -- where entries start -----------------------------------------------------------------------------------

    def _find_starts(self) -> Index:
        data = self.data
        start = _places_of_two(data[:-6])
        word = np.ndarray((len(data) - 7,), "<u8", data, 0, (1,))[start]
        like = (word & _START_BITS) == _START
        if not like.all():
            start, word = start[like], word[like]
        if len(start) == 0:
            raise ShapeError
        first, second, third = ((word >> np.uint64(bits)).astype(np.uint8) for bits in (40, 48, 56))
        two = second != _CR
        length = (first - _ZERO).astype(np.int64)
        length = np.where(two, 10 * length + (second - _ZERO), length)
        begin = start + np.where(two, 9, 8)
        # An id has 3 to 41 bytes; whatever else the digits were, the rest of a reply must then prove.
        right = (length >= 3) & (length <= 41) & (~two | (third == _CR)) & (data[begin - 1] == _LF)
        end = begin + length
        right[end > len(data) - 4] = False
        right[right] = data[end[right] + 2] == _STAR
        if not right.all():
            start, begin, end = start[right], begin[right], end[right]
        if len(start) == 0:
            raise ShapeError
        self.begin, self.end = begin, end
        return start

    # -- shapes ------------------------------------------------------------------------------------------------

    def _walk_all(self) -> Index:
        """Sort all entries into shapes; where each entry ends."""
        self.shapes: list[Shape] = []
        finish = np.empty(len(self.begin), np.int64)
        rest = np.arange(len(self.begin))
        while len(rest):
            if len(self.shapes) == _MOST_SHAPES:
                raise ShapeError
            names, segments = self._path_of(int(self.end[rest[0]]))
            shape = Shape(names, rest)
            at = self._walk(shape, segments)
            finish[shape.rows] = at + 2
            self.shapes.append(shape)
            if len(shape.rows) == len(rest):
                break
            others = np.ones(len(finish), np.bool_)
            others[rest] = False
            others[shape.rows] = True
            rest = np.flatnonzero(~others)
        return finish

    def _path_of(self, at: int) -> tuple[list[bytes] | None, list[bytes]]:
        """Names and segments of the entry whose id ends here, read in Python."""
        if bytes(self._reply[at : at + len(_NIL)]) == _NIL:
            return None, [_NIL]
        segments: list[bytes] = []
        names: list[bytes] = []
        parts, after = self._number(at + 2, b"*")
        if parts % 2 or not parts:
            raise ShapeError
        for _ in range(parts // 2):
            length, name = self._number(after, b"$")
            names.append(bytes(self._reply[name : name + length]))
            segments.append(bytes(self._reply[at : name + length + 2]))
            length, value = self._number(name + length + 2, b"$")
            at = value + length
            after = at + 2
        return names, segments

    def _number(self, at: int, kind: bytes) -> tuple[int, int]:
        """The number in the header here, and where what follows it begins."""
        head = bytes(self._reply[at : at + 24])
        end = head.find(b"\r\n")
        digits = head[1:end]
        if end < 2 or head[:1] != kind or not digits.isdigit() or (digits[:1] == b"0" and end > 2):
            raise ShapeError
        return int(digits), at + end + 2

    def _walk(self, shape: Shape, segments: list[bytes]) -> Index:
        """Walk the shape's rows along the segments; keeps those that stay on the path, and says where each ends."""
        at: Index = self.end[shape.rows]
        for segment in segments:
            for begin in range(0, len(segment), _PIECE):
                piece = segment[begin : begin + _PIECE]
                found, at = self._match(shape, at, piece)
            if shape.names is None:
                return at
            begin_of, end_of = self._values(found, at)
            shape.begin.append(begin_of)
            shape.end.append(end_of)
            at = end_of
        return at

    def _match(self, shape: Shape, at: Index, piece: bytes) -> tuple[npt.NDArray[Any], Index]:
        """Keep the rows that have these bytes here: the bytes after them, and where they begin."""
        ahead = _HEADER if shape.names is not None else 0
        size = len(piece) + ahead
        if at[-1] + size > len(self.data):  # the last rows may be shorter than this shape
            near = at + size <= len(self.data)
            shape.keep(near)
            at = at[near]
        found = np.ndarray((len(self.data) - size + 1,), f"V{size}", self.data, 0, (1,))[at]
        same = _begin_with(found, piece)
        if not same.all():
            shape.keep(same)
            at, found = at[same], found[same]
        return found.view(np.uint8).reshape(len(at), size)[:, len(piece) :], at + len(piece)

    def _values(self, header: Bytes, at: Index) -> tuple[Index, Index]:
        """Where values begin and end, from their length headers, which begin at `at`."""
        one = header[:, 1] - _ZERO  # wraps for bytes below '0'
        short = header[:, 2] == _CR
        length = one.astype(np.int64)
        if (header[:, 0] != _DOLLAR).any() or (one > 9).any():
            raise ShapeError
        if short.all():
            if (header[:, 3] != _LF).any():
                raise ShapeError
            begin = at + 4
        else:
            length, begin = self._longer(header, at, length, short)
        return begin, begin + length

    def _longer(self, header: Bytes, at: Index, length: Index, short: Mask) -> tuple[Index, Index]:
        """The same where some headers have more than one digit."""
        two, three = header[:, 2] - _ZERO, header[:, 3] - _ZERO
        feed = np.where(short, header[:, 3], header[:, 4])
        begin = at + np.where(short, 4, 5)
        more = ~short
        if ((length == 0) & more).any() or (two[more] > 9).any():
            raise ShapeError
        length = np.where(short, length, 10 * length + two)
        long = more & (header[:, 3] != _CR)
        if long.any():
            if (three[long] > 9).any():
                raise ShapeError
            feed = np.where(long, header[:, 5], feed)
            begin = np.where(long, at + 6, begin)
            length = np.where(long, 10 * length + three, length)
            # Values of a thousand bytes and more are few on a page.
            for row in np.flatnonzero(long & (header[:, 4] != _CR)).tolist():
                length[row], begin[row] = self._number(int(at[row]), b"$")
                feed[row] = _LF
        if (feed != _LF).any():
            raise ShapeError
        return length, begin

    # -- the proof ---------------------------------------------------------------------------------------------

    def _chain(self, start: Index, finish: Index, replies: int) -> list[int]:
        """Entries per reply; proves that entries and the heads of replies follow each other without a gap."""
        data = self.data
        if finish[-1] > len(data) or (data[finish - 2] != _CR).any() or (data[finish - 1] != _LF).any():
            raise ShapeError
        ends, starts = np.concatenate([[0], finish]), np.concatenate([start, [len(data)]])
        counts: list[int] = []
        seen = 0  # entries before the reply in hand
        for gap in np.flatnonzero(ends != starts).tolist():
            if counts and counts[-1] != gap - seen:
                raise ShapeError
            seen, at = gap, int(ends[gap])
            while at < starts[gap]:
                if counts and counts[-1] and at != ends[gap]:
                    raise ShapeError
                count, at = self._number(at, b"*")
                counts.append(count)
            if at != starts[gap]:
                raise ShapeError
        if len(counts) != replies or sum(counts) != len(start):
            raise ShapeError
        return counts


def _places_of_two(data: Bytes) -> Index:
    """Where `*2` stands; block by block, so that a huge value costs no more than itself."""
    found: list[Index] = []
    for at in range(0, len(data) - 1, _BLOCK):
        block = data[at : at + _BLOCK + 1]
        like = block[:-1] == _STAR
        like &= block[1:] == _TWO
        found.append(np.flatnonzero(like) + at)
        if len(found[-1]) > _BLOCK // 9:  # an entry takes 18 bytes and has two of them at most: these are in a value
            raise ShapeError
    return found[0] if len(found) == 1 else np.concatenate(found)


def _begin_with(found: npt.NDArray[np.void], piece: bytes) -> Mask:
    """Which of the found bytes begin with the piece, by words of eight bytes; the last word may overlap the others."""
    size = found.dtype.itemsize
    same: Mask = np.ones(len(found), np.bool_)
    if len(piece) < 8:
        begins = found.view(np.uint8).reshape(-1, size)[:, : len(piece)]
        return np.equal(begins, np.frombuffer(piece, np.uint8)).all(axis=1, out=same)
    offsets = [*range(0, len(piece) - 8, 8), len(piece) - 8]
    words = [int.from_bytes(piece[offset : offset + 8], "little") for offset in offsets]
    for offset, word in zip(offsets, words, strict=True):
        same &= np.ndarray((len(found),), "<u8", found, offset, (size,)) == np.uint64(word)
    return same
