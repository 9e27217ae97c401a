"""The vectorised way to read entries: all at once, field by field, with a proof of each step (FACTS A1, A2).

An entry in a RESP2 reply (␍ is a line end):

    *2␍$15␍ 1700000000000-0 ␍*4␍$4␍year␍ $4␍ 2013 ␍$7␍carrier␍ $2␍ UA ␍
    └──┬──┘ └──── id ─────┘ └─ segment ┘ └┬┘ └──┘ └ segment ─┘          └ the next entry's *2, or a reply's *n
     start                             header  value

Entries with the same names in the same order (a shape) differ only in their headers and values. So the first entry is
read in Python and defines the segments. All other entries are walked in parallel: the segment must match byte by byte,
the header after it gives the bounds of the value, and there the next segment must follow. Entries that differ have
another shape and take part in the next round; a deleted entry's only segment is ␍*-1. If there are many shapes, each
round would read few entries: then they are walked field by field, whatever the names.

The starts of entries are guessed: each `*2␍$` that is followed by an ID and `*`. The walk proves the guess, because
each entry must end where the next one starts, from the reply's first byte to its last: RESP then allows only this
reading. Lengths, not line ends, lead from part to part, so a value may hold any bytes. Only a value that looks like the
start of an entry makes a wrong guess; this is noticed, and the exact way reads the reply.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from spark_streams.connector.wire.lines import DOLLAR, STAR, Bytes, Index, Mask, ShapeError

# -- the headers of RESP parts: `$15` before a string of fifteen bytes, `*4` before an array of four -------------------

NUMBER = 5  # bytes after a header's kind that `bounds_of` reads: `7␍␊` is the shortest with its required next bytes


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


# -- entries of many shapes: the first field of all of them, then the second, whatever the names -----------------------

# Pages with entries of more fields than this, and fewer of them than FEW_ROWS, are parsed one by one faster.
MANY_FIELDS, FEW_ROWS = 100, 30
_BEHIND = 3 + NUMBER  # bytes after a part that is followed by another: its line end, and the next header


@dataclass
class MixedShapes:
    """Fields of entries: all first fields, then all second ones, …"""

    data: Bytes
    rows: Index  # rows of the entries, ascending
    count: Index  # fields of each
    entry: Index  # by field: index into rows
    step: Index  # by field: its position in the entry
    name_begin: Index  # by field: the bounds of its name and of its value
    name_end: Index
    begin: Index
    end: Index

    def named(self, name: bytes) -> Mask:
        """Return which fields have this name."""
        same: Mask = self.name_end - self.name_begin == len(name)
        if name:
            like = np.flatnonzero(same)
            # A huge name is compared in pieces.
            for offset in range(0, len(name), 64):
                piece = name[offset : offset + 64]
                words = np.ndarray((len(self.data) - len(piece) + 1,), f"V{len(piece)}", self.data, 0, (1,))
                like = like[words[self.name_begin[like] + offset] == np.void(piece)]
            same = np.zeros(len(same), np.bool_)
            same[like] = True
        return same


def walk_mixed(data: Bytes, rows: Index, part_end: Index) -> tuple[MixedShapes, Index]:
    """Return the fields of these entries, and the end of each entry. part_end: the end of each ID.

    Raises ShapeError, or IndexError, for any other bytes.
    """
    after, parts = bounds_of(data, _behind(data, part_end, STAR), part_end + 3)
    parts = parts - after
    if (parts % 2 != 0).any() or (parts == 0).any():
        raise ShapeError
    count = parts // 2
    if count.max() > MANY_FIELDS and count.sum() < FEW_ROWS * count.max():
        raise ShapeError
    finish = np.empty(len(rows), np.int64)
    fields: list[tuple[Index, ...]] = []
    remaining = np.arange(len(rows))
    part_end = after - 2
    step = 0
    while len(remaining):
        name_begin, name_end = bounds_of(data, _behind(data, part_end), part_end + 3)
        begin, end = bounds_of(data, _behind(data, name_end), name_end + 3)
        fields.append((remaining, np.full(len(remaining), step), name_begin, name_end, begin, end))
        step += 1
        finish[remaining] = end + 2
        more = count[remaining] > step
        remaining, part_end = remaining[more], end[more]
    return MixedShapes(data, rows, count, *(np.concatenate(part) for part in zip(*fields, strict=True))), finish


def _behind(data: Bytes, part_end: Index, kind: int = DOLLAR) -> Bytes:
    """Return the numbers in the headers after parts that end here. Raises ShapeError if a part has no line end, or if
    a header is of another kind."""
    windows = np.ndarray((len(data) - _BEHIND + 1,), f"V{_BEHIND}", data, 0, (1,))[part_end]
    parts = windows.view(np.uint8).reshape(len(part_end), _BEHIND)
    for column, byte in enumerate((_CR, _LF, kind)):
        if np.count_nonzero(parts[:, column] == byte) < len(parts):
            raise ShapeError
    number: Bytes = parts[:, 3:]
    return number


# -- entries of one shape ----------------------------------------------------------------------------------------------

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
    """Entries with the same names in the same order."""

    names: list[bytes] | None  # None: deleted entries
    rows: Index  # their rows, ascending
    begin: list[Index] = field(default_factory=list)  # by field: where each row's value begins
    end: list[Index] = field(default_factory=list)  # by field: where it ends

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
