"""The vectorised way to read entries: all of them at once, field by field, each step proved (FACTS A1, A2).

An entry in a RESP2 reply, where ␍ stands for a line end:

    *2␍$15␍ 1700000000000-0 ␍*4␍$4␍year␍ $4␍ 2013 ␍$7␍carrier␍ $2␍ UA ␍
    └──┬──┘ └──── id ─────┘ └─ segment ┘ └┬┘ └──┘ └ segment ─┘          └ the next entry's *2, or a reply's *n
     start                             header  value

Entries with the same names in the same order (a shape) differ only in their headers and values. So the first entry is
read in Python, and gives the segments; every other entry is then walked alongside: the segment must be there byte by
byte, the header after it says where the value begins and ends, and there the next segment must be. Entries that leave
the path are another shape, and take part in the next round; a deleted entry's only segment is ␍*-1. Where shapes are
many, each would be a round for a few entries: they are walked side by side (mixed_shapes.py), field by field whatever
the names.

Where entries start is guessed: at each `*2␍$` that has an id and `*` behind it. The walk proves the guess, because
each entry must end where the next one starts, from the reply's first byte to its last: that is then the only reading
that RESP allows. Lengths, not line ends, lead from part to part, so a value may hold anything; only one that looks
like an entry's start makes a wrong guess, which is noticed, and the exact way reads the reply.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from spark_streams.wire.entries.headers import HEADER, bounds_of, number_at
from spark_streams.wire.entries.lines import Bytes, Index, Mask, ShapeError
from spark_streams.wire.entries.mixed_shapes import FEW_ROWS, MANY_FIELDS, MixedShapes, walk_mixed

_SHARE = 4  # a shape that fewer than one of so many entries have does not pay: the rest is walked field by field
_PIECE = 64  # bytes of a segment that are compared at once

_BLOCK = 1 << 20  # bytes that are searched at once
_STAR, _TWO, _MINUS, _CR, _LF, _ZERO = b"*2-\r\n0"
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

    begin, end: the bounds of each entry's id; shapes: the entries by shape; mixed: those of none; counts: entries per
    reply.
    """

    def __init__(self, reply: memoryview | bytes, replies: int = 1) -> None:
        self._reply = reply
        self.data: Bytes = np.frombuffer(reply, np.uint8)
        if len(self.data) < 32:
            raise ShapeError
        try:
            start = self._find_starts()
            finish = self._walk_all()
            self.counts = self._chain(start, finish, replies)
        except IndexError:  # a length led beyond the reply's end
            raise ShapeError from None

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
        self.mixed: MixedShapes | None = None
        finish = np.empty(len(self.begin), np.int64)
        nil = self.data[self.end + 3] == _MINUS
        if nil.any():
            gone = Shape(None, np.flatnonzero(nil))
            finish[gone.rows] = self._walk(gone, [_NIL]) + 2
            if len(gone.rows) < np.count_nonzero(nil):
                raise ShapeError
            self.shapes.append(gone)
        rest = np.flatnonzero(~nil)
        while len(rest):
            names, segments = self._path_of(int(self.end[rest[0]]))
            shape = Shape(names, rest)
            finish[shape.rows] = self._walk(shape, segments) + 2
            self.shapes.append(shape)
            if len(shape.rows) == len(rest):
                break
            left = np.zeros(len(finish), np.bool_)
            left[rest] = True
            left[shape.rows] = False
            few = _SHARE * len(shape.rows) < len(rest)
            rest = np.flatnonzero(left)
            if few:
                self.mixed, finish[rest] = walk_mixed(self.data, rest, self.end[rest])
                break
        return finish

    def _path_of(self, part_end: int) -> tuple[list[bytes], list[bytes]]:
        """Names and segments of an entry, read in Python. part_end: where its id ends, then each of its values."""
        segments: list[bytes] = []
        names: list[bytes] = []
        parts, after = number_at(self._reply, part_end + 2, b"*")
        if parts % 2 or not parts:
            raise ShapeError
        for _ in range(parts // 2):
            length, name = number_at(self._reply, after, b"$")
            names.append(bytes(self._reply[name : name + length]))
            segments.append(bytes(self._reply[part_end : name + length + 2]))
            length, value = number_at(self._reply, name + length + 2, b"$")
            part_end = value + length
            after = part_end + 2
        return names, segments

    def _walk(self, shape: Shape, segments: list[bytes]) -> Index:
        """Walk the shape's rows along the segments; keeps those that stay on the path, and says where each ends."""
        position: Index = self.end[shape.rows]
        for segment in segments:
            for begin in range(0, len(segment), _PIECE):
                headers, position = self._match(shape, position, segment[begin : begin + _PIECE])
            if shape.names is None:
                return position
            if len(shape.rows) < FEW_ROWS and len(segments) > MANY_FIELDS:
                raise ShapeError
            begin_of, end_of = bounds_of(self.data, headers, position)
            shape.begin.append(begin_of)
            shape.end.append(end_of)
            position = end_of
        return position

    def _match(self, shape: Shape, position: Index, piece: bytes) -> tuple[Bytes, Index]:
        """Keep the rows that have these bytes where they stand: the bytes after them, and where these begin."""
        ahead = HEADER if shape.names is not None else 0
        size = len(piece) + ahead
        if position[-1] + size > len(self.data):  # the last rows may be shorter than this shape
            near = position + size <= len(self.data)
            shape.keep(near)
            position = position[near]
        windows = np.ndarray((len(self.data) - size + 1,), f"V{size}", self.data, 0, (1,))[position]
        same = _begin_with(windows, piece)
        if not same.all():
            shape.keep(same)
            position, windows = position[same], windows[same]
        return windows.view(np.uint8).reshape(len(position), size)[:, len(piece) :], position + len(piece)

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
            seen, offset = gap, int(ends[gap])
            while offset < starts[gap]:
                if counts and counts[-1] and offset != ends[gap]:
                    raise ShapeError
                count, offset = number_at(self._reply, offset, b"*")
                counts.append(count)
            if offset != starts[gap]:
                raise ShapeError
        if len(counts) != replies or sum(counts) != len(start):
            raise ShapeError
        return counts


def _places_of_two(data: Bytes) -> Index:
    """Where `*2` stands; block by block, so that a huge value costs no more than itself."""
    places: list[Index] = []
    for block_start in range(0, len(data) - 1, _BLOCK):
        block = data[block_start : block_start + _BLOCK + 1]
        like = block[:-1] == _STAR
        like &= block[1:] == _TWO
        places.append(np.flatnonzero(like) + block_start)
        if len(places[-1]) > _BLOCK // 9:  # an entry takes 18 bytes and has two of them at most: these are in a value
            raise ShapeError
    return places[0] if len(places) == 1 else np.concatenate(places)


def _begin_with(windows: npt.NDArray[np.void], piece: bytes) -> Mask:
    """Which of these windows on the reply begin with the piece, by words of eight bytes; the last word may overlap the
    others."""
    size = windows.dtype.itemsize
    same: Mask = np.ones(len(windows), np.bool_)
    if len(piece) < 8:
        begins = windows.view(np.uint8).reshape(-1, size)[:, : len(piece)]
        return np.equal(begins, np.frombuffer(piece, np.uint8)).all(axis=1, out=same)
    offsets = [*range(0, len(piece) - 8, 8), len(piece) - 8]
    words = [int.from_bytes(piece[offset : offset + 8], "little") for offset in offsets]
    for offset, word in zip(offsets, words, strict=True):
        same &= np.ndarray((len(windows),), "<u8", windows, offset, (size,)) == np.uint64(word)
    return same
