"""The vectorised way to read entries: all at once, field by field, with a proof of each step (FACTS A1, A2).

An entry in a RESP2 reply (␍ is a line end):

    *2␍$15␍ 1700000000000-0 ␍*4␍$4␍year␍ $4␍ 2013 ␍$7␍carrier␍ $2␍ UA ␍
    └──┬──┘ └──── id ─────┘ └─ segment ┘ └┬┘ └──┘ └ segment ─┘          └ the next entry's *2, or a reply's *n
     start                             header  value

Entries with the same names in the same order (a shape) differ only in their headers and values. So the first entry is
read in Python and defines the segments. All other entries are walked in parallel: the segment must match byte by byte,
the header after it gives the bounds of the value, and there the next segment must follow. Entries that differ have
another shape and take part in the next round; a deleted entry's only segment is ␍*-1. If there are many shapes, each
round would read few entries: then they are walked field by field, whatever the names (mixed_shapes.py).

The starts of entries are guessed: each `*2␍$` that is followed by an ID and `*`. The walk proves the guess, because
each entry must end where the next one starts, from the reply's first byte to its last: RESP then allows only this
reading. Lengths, not line ends, lead from part to part, so a value may hold any bytes. Only a value that looks like the
start of an entry makes a wrong guess; this is noticed, and the exact way reads the reply.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from spark_streams.connector.wire.entries.headers import NUMBER, bounds_of, number_at
from spark_streams.connector.wire.entries.lines import Bytes, Index, Mask, ShapeError
from spark_streams.connector.wire.entries.mixed_shapes import FEW_ROWS, MANY_FIELDS, MixedShapes, walk_mixed

_SHARE = 4  # a shape of less than this share of the entries is too rare: the others are walked field by field
_PIECE = 64  # bytes of a segment that are compared at a time

_BLOCK = 1 << 20  # bytes that are searched at a time
# Searching for `*` alone is faster if the first bytes of a block have at most one in so many.
_SPARSE, _SAMPLE = 100, 1 << 14
_STAR, _TWO, _MINUS, _CR, _LF, _ZERO = b"*2-\r\n0"
_START = int.from_bytes(b"*2\r\n$", "little")
_START_BITS = np.uint64((1 << 40) - 1)
_NIL = b"\r\n*-1"


@dataclass
class Shape:
    """Entries with the same names in the same order.

    names: None for deleted entries. rows: their rows, ascending. begin, end: per field, the bounds of each row's value.
    """

    names: list[bytes] | None
    rows: Index
    begin: list[Index] = field(default_factory=list)
    end: list[Index] = field(default_factory=list)

    def keep(self, mask: Mask) -> None:
        """Drop the rows that differ from the shape."""
        self.rows = self.rows[mask]
        self.begin = [bounds[mask] for bounds in self.begin]
        self.end = [bounds[mask] for bounds in self.end]


class ReadReplies:
    """Replies in a row, read at once. Raises ShapeError if the reading cannot be proved.

    begin, end: the bounds of each entry's ID. shapes: the entries by shape. mixed: entries without a shape. counts:
    entries per reply.
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
        except IndexError:  # a length exceeded the reply
            raise ShapeError from None

    # -- starts of entries -------------------------------------------------------------------------------------

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
        # An ID has 3 to 41 bytes; the rest of the reply must prove other digits wrong.
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
        """Assign all entries to shapes; return the end of each entry."""
        self.shapes: list[Shape] = []
        self.mixed: MixedShapes | None = None
        finish = np.empty(len(self.begin), np.int64)
        nil = self.data[self.end + 3] == _MINUS
        if nil.any():
            deleted = Shape(None, np.flatnonzero(nil))
            finish[deleted.rows] = self._walk(deleted, [_NIL]) + 2
            if len(deleted.rows) < np.count_nonzero(nil):
                raise ShapeError
            self.shapes.append(deleted)
        remaining = np.flatnonzero(~nil)
        while len(remaining):
            names, segments = self._path_of(int(self.end[remaining[0]]))
            shape = Shape(names, remaining)
            finish[shape.rows] = self._walk(shape, segments) + 2
            self.shapes.append(shape)
            if len(shape.rows) == len(remaining):
                break
            is_remaining = np.zeros(len(finish), np.bool_)
            is_remaining[remaining] = True
            is_remaining[shape.rows] = False
            is_rare = _SHARE * len(shape.rows) < len(remaining)
            remaining = np.flatnonzero(is_remaining)
            if is_rare:
                self.mixed, finish[remaining] = walk_mixed(self.data, remaining, self.end[remaining])
                break
        return finish

    def _path_of(self, part_end: int) -> tuple[list[bytes], list[bytes]]:
        """Return names and segments of an entry, read in Python. part_end: the end of its ID, then of each value."""
        segments: list[bytes] = []
        names: list[bytes] = []
        parts, after = number_at(self._reply, part_end + 2, b"*")
        if parts % 2 or not parts:
            raise ShapeError
        for _ in range(parts // 2):
            length, name = number_at(self._reply, after, b"$")
            names.append(bytes(self._reply[name : name + length]))
            segments.append(bytes(self._reply[part_end : name + length + 3]))
            length, value = number_at(self._reply, name + length + 2, b"$")
            part_end = value + length
            after = part_end + 2
        return names, segments

    def _walk(self, shape: Shape, segments: list[bytes]) -> Index:
        """Walk the shape's rows along the segments; keep the rows that match, and return the end of each."""
        position: Index = self.end[shape.rows]
        for segment in segments:
            for begin in range(0, len(segment), _PIECE):
                numbers, position = self._match(shape, position, segment[begin : begin + _PIECE])
            if shape.names is None:
                return position
            if len(shape.rows) < FEW_ROWS and len(segments) > MANY_FIELDS:
                raise ShapeError
            begin_of, end_of = bounds_of(self.data, numbers, position)
            shape.begin.append(begin_of)
            shape.end.append(end_of)
            position = end_of
        return position

    def _match(self, shape: Shape, position: Index, piece: bytes) -> tuple[Bytes, Index]:
        """Keep the rows with these bytes at their position; return the bytes after them, and the offset of these."""
        ahead = NUMBER if shape.names is not None else 0
        size = len(piece) + ahead
        if position[-1] + size > len(self.data):  # the last rows may be shorter than this shape
            near = position + size <= len(self.data)
            shape.keep(near)
            position = position[near]
        windows = np.ndarray((len(self.data) - size + 1,), f"V{size}", self.data, 0, (1,))[position]
        same = _begin_with(windows, piece)
        if np.count_nonzero(same) < len(same):
            shape.keep(same)
            position, windows = position[same], windows[same]
        return windows.view(np.uint8).reshape(len(position), size)[:, len(piece) :], position + len(piece)

    # -- the proof ---------------------------------------------------------------------------------------------

    def _chain(self, start: Index, finish: Index, replies: int) -> list[int]:
        """Return entries per reply; prove that entries and heads of replies follow one another without a gap."""
        data = self.data
        if finish[-1] > len(data) or (data[finish - 2] != _CR).any() or (data[finish - 1] != _LF).any():
            raise ShapeError
        ends, starts = np.concatenate([[0], finish]), np.concatenate([start, [len(data)]])
        counts: list[int] = []
        seen = 0  # entries before the current reply
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
    """Return the offsets of `*2`, block by block, so that a huge value costs no more than itself."""
    places: list[Index] = []
    mask: Mask = np.zeros(-(-min(len(data), _BLOCK) // 64) * 64, np.bool_)
    for block_start in range(0, len(data) - 1, _BLOCK):
        block = data[block_start : block_start + _BLOCK + 1]
        np.equal(block[:-1], _STAR, out=mask[: len(block) - 1])
        mask[len(block) - 1 :] = False
        if _SPARSE * np.count_nonzero(mask[:_SAMPLE]) < min(len(block), _SAMPLE):
            place = _true_places(mask)
            place = place[block[place + 1] == _TWO]
        else:
            mask[: len(block) - 1] &= block[1:] == _TWO
            place = np.flatnonzero(mask)
        places.append(place + block_start)
        if len(place) > _BLOCK // 9:  # an entry takes 18 bytes and has at most two of them: these are in a value
            raise ShapeError
    return places[0] if len(places) == 1 else np.concatenate(places)


def _true_places(mask: Mask) -> Index:
    """Return np.flatnonzero(mask), faster if few are true: 64, then 8 of them are looked at together. The length is a
    multiple of 64."""
    eights = mask.view(np.uint64) != 0
    place = np.flatnonzero(eights.view(np.uint64) != 0)
    for finer in (eights, mask):
        true = np.flatnonzero(finer.view(np.uint64)[place].view(np.bool_))
        place = 8 * place[true >> 3] + (true & 7)
    return place


def _begin_with(windows: npt.NDArray[np.void], piece: bytes) -> Mask:
    """Return which windows begin with the piece. Compares words of eight bytes; the last word may overlap another."""
    size = windows.dtype.itemsize
    if len(piece) < 8:
        begins = windows.view(np.uint8).reshape(-1, size)[:, : len(piece)]
        same: Mask = np.ones(len(windows), np.bool_)
        return np.equal(begins, np.frombuffer(piece, np.uint8)).all(axis=1, out=same)
    last = len(piece) - 8
    same = _have_word(windows, piece, last)
    for offset in range(0, last, 8):
        same &= _have_word(windows, piece, offset)
    return same


def _have_word(windows: npt.NDArray[np.void], piece: bytes, offset: int) -> Mask:
    """Return which windows have the same eight bytes at this offset as the piece."""
    word = int.from_bytes(piece[offset : offset + 8], "little")
    words = np.ndarray((len(windows),), "<u8", windows, offset, (windows.dtype.itemsize,))
    same: Mask = np.equal(words, np.uint64(word))
    return same
