"""Reply bytes of XRANGE, or of XREADGROUP's history, to columns (FACTS A1, A2).

An entry in a RESP2 reply is lines:

    *2            ← candidate for an entry's first line
    $15           ← header: length of the id
    1700000000000-0
    *4            ← twice the number of fields
    $4            ← header of a name     ┐
    year          ← the name             │ once per field
    $4            ← header of a value    │
    2013          ← the value            ┘

The vectorised pass finds all line ends at once, takes every line that looks like an entry's first one, and then
*proves* the reading: the entries chain without a gap from the first line to the last, each length header equals the
length of the line below it, and each group of entries called same-shaped has the same names, byte by byte. By
induction this is then the only reading of the reply that RESP allows. Whatever does not prove (a value with a line end,
an entry that is nil because it was deleted) is read by the exact path, which parses reply by reply.

Both paths give an EntryPage; tests hold them against each other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import hiredis
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_streams.errors import ServerReplyError
from spark_streams.ids import StreamId
from spark_streams.wire.lines import DASH, DOLLAR, STAR, Index, Lines, Mask, ShapeError, digits

_LONGEST_HEAD = 24  # bytes of `*<count>CRLF`
_MOST_SHAPES = 64  # more shapes than this on one page: the exact path is as fast
UInt64s = npt.NDArray[np.uint64]


class EntryPage(ABC):
    """The entries of one reply, as columns. Rows are the entries in stream order; deleted (nil) ones are not rows."""

    count: int  # rows
    deleted: int  # entries that the reply names but that are gone from the stream
    last_id: StreamId | None  # of the reply's last entry, deleted or not; None for an empty reply

    @abstractmethod
    def ids(self) -> pa.Array:
        """binary: each entry's id as text."""

    @abstractmethod
    def milliseconds(self) -> UInt64s:
        """Each id's first part, ms since the epoch."""

    @abstractmethod
    def field(self, name: bytes) -> pa.Array:
        """binary: each entry's value of this field, null where it has none; the last one where it has several."""

    @abstractmethod
    def fields(self) -> tuple[pa.Array, pa.Array, pa.Array]:
        """(offsets int32, names binary, values binary): all fields of entry i are offsets[i] … offsets[i+1]."""

    @abstractmethod
    def rows_of(self, counts: Sequence[int]) -> Index:
        """Rows among each of so many consecutive entries: as many, less the deleted ones."""

    def count_up_to(self, last: StreamId) -> int:
        """How many rows have an id at or below `last`."""
        if self.last_id is None or self.last_id <= last:
            return self.count
        ids = self.ids().to_pylist()
        low, high = 0, len(ids)
        while low < high:
            middle = (low + high) // 2
            if StreamId.parse(ids[middle]) <= last:
                low = middle + 1
            else:
                high = middle
        return low


def decode_entries(reply: memoryview | bytes) -> EntryPage:
    """One XRANGE reply (or the inner array of an XREADGROUP reply) to columns.

    Raises ServerReplyError when the reply is an error.
    """
    if bytes(reply[:1]) == b"-":
        raise _no_entries(reply)
    if bytes(reply[:4]) == b"*0\r\n":
        return ExactPage([])
    try:
        return VectorPage(reply)
    except ShapeError:
        return ExactPage(_parse(reply))


def join_replies(replies: Sequence[memoryview]) -> tuple[memoryview, list[int]]:
    """(one reply with the entries of all these XRANGE replies in turn, how many entries each has).

    So many small replies cost one vectorised pass. The page's `last_id` is then the last reply's, and its rows ascend
    within each reply only; `EntryPage.rows_of` tells rows per reply where entries are deleted.
    Raises ServerReplyError when one of them is an error.
    """
    counts: list[int] = []
    parts: list[memoryview | bytes] = [b""]
    for reply in replies:
        head = bytes(reply[:_LONGEST_HEAD])
        end = head.find(b"\r\n")
        if head[:1] != b"*" or not head[1:end].isdigit():
            raise _no_entries(reply)
        counts.append(int(head[1:end]))
        parts.append(reply[end + 2 :])
    parts[0] = b"*%d\r\n" % sum(counts)
    return memoryview(b"".join(parts)), counts


def _no_entries(reply: memoryview | bytes) -> ServerReplyError:
    text = bytes(reply[:200]).decode("utf-8", "replace").removeprefix("-").strip()
    return ServerReplyError(f"expected entries, the server answered with: {text}")


def entries_of_read(reply: memoryview, stream: bytes) -> memoryview:
    """The entries' array inside an XREADGROUP reply for one stream. Raises ServerReplyError for another reply."""
    head = b"*1\r\n*2\r\n$%d\r\n%b\r\n" % (len(stream), stream)
    if bytes(reply[: len(head)]) == head:
        return reply[len(head) :]
    text = bytes(reply[:200]).decode("utf-8", "replace").strip()
    raise ServerReplyError(f"reading the pending entries of stream {stream.decode('utf-8', 'replace')!r} gave: {text}")


def slices_of(data: memoryview | bytes, begin: Index, end: Index, valid: Mask | None = None) -> pa.Array:
    """A binary array of data[begin[i]:end[i]]; begin and end ascend together. Where `valid` is given, its true rows
    take the slices in turn and the others are null."""
    bounds = np.empty(2 * len(begin) + 1, np.int32)
    bounds[0:-1:2] = begin
    bounds[1::2] = end
    bounds[-1] = bounds[-2] if len(begin) else 0
    spans = pa.Array.from_buffers(pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    if valid is None:
        return spans.take(pa.array(np.arange(0, 2 * len(begin), 2, dtype=np.int32)))
    places = np.cumsum(valid, dtype=np.int32) * 2 - 2
    return spans.take(pa.array(places, mask=~valid))


@dataclass(frozen=True)
class _Shape:
    """Entries with the same names in the same order."""

    names: list[bytes]
    rows: Index  # which entries, ascending
    values: Index  # (rows × names): the line of each value


class VectorPage(EntryPage):
    """The vectorised pass. The constructor raises ShapeError where it cannot prove its reading."""

    def __init__(self, reply: memoryview | bytes) -> None:
        self._reply = reply
        lines = self._lines = Lines.split(reply)
        first_byte = lines.first_byte()
        length = lines.end - lines.begin
        self.count = int(lines.numbers(slice(0, 1))[0])
        if first_byte[0] != STAR or self.count == 0:
            raise ShapeError

        self._entry = self._find_entries(first_byte, length)
        pairs = self._pairs_per_entry(first_byte)
        headers = self._headers(pairs)
        if not lines.headers_match(headers):
            raise ShapeError

        self._names_line = headers[0::2] + 1
        self._pairs = pairs
        self._first_pair = np.cumsum(pairs) - pairs
        self._shapes = self._group_by_shape()
        self.deleted = 0
        self._ms, self._seq = self._split_ids()
        self.last_id = StreamId(int(self._ms[-1]), int(self._seq[-1]))

    # -- proving the reading ------------------------------------------------------------------------------------

    def _find_entries(self, first_byte: npt.NDArray[np.uint8], length: Index) -> Index:
        """The first line of each entry: `*2`, two lines above another `*`."""
        stars = np.flatnonzero((first_byte == STAR) & (length >= 2))
        data, begin = self._lines.data, self._lines.begin
        two = stars[(length[stars] == 2) & (data[begin[stars] + 1] == 0x32)]
        two = two[(two > 0) & (two + 3 < len(first_byte))]
        entry: Index = two[(first_byte[two + 1] == DOLLAR) & (first_byte[two + 3] == STAR)]
        if len(entry) != self.count:
            raise ShapeError
        return entry

    def _pairs_per_entry(self, first_byte: npt.NDArray[np.uint8]) -> Index:
        """Fields per entry; proves that the entries chain from the first line to the last, and the id headers."""
        lines, entry = self._lines, self._entry
        arguments = lines.numbers(entry + 3)
        following = entry + 4 + 2 * arguments
        if entry[0] != 1 or (following[:-1] != entry[1:]).any() or following[-1] != len(first_byte):
            raise ShapeError
        if (arguments % 2 != 0).any() or (arguments == 0).any():
            raise ShapeError
        if not lines.headers_match(entry + 1):
            raise ShapeError
        return arguments // 2

    def _headers(self, pairs: Index) -> Index:
        """The lines that are length headers of names and values: every second line from each entry's fifth."""
        per_entry = 2 * pairs
        total = int(per_entry.sum())
        within = np.arange(total) - np.repeat(np.cumsum(per_entry) - per_entry, per_entry)
        return np.repeat(self._entry + 4, per_entry) + 2 * within

    def _group_by_shape(self) -> list[_Shape]:
        shapes: list[_Shape] = []
        for width in np.unique(self._pairs):
            rows = np.flatnonzero(self._pairs == width)
            while len(rows):
                if len(shapes) == _MOST_SHAPES:
                    raise ShapeError
                shape, rows = self._peel(rows, int(width))
                shapes.append(shape)
        return shapes

    def _peel(self, rows: Index, width: int) -> tuple[_Shape, Index]:
        """The entries with the names of the first one, and the rest."""
        lines = self._lines
        name_lines = self._names_line[self._first_pair[rows][:, None] + np.arange(width)]
        begin = lines.begin[name_lines]
        size = lines.end[name_lines] - begin
        same = (size == size[0]).all(axis=1)
        names = [bytes(lines.data[b : b + s]) for b, s in zip(begin[0].tolist(), size[0].tolist(), strict=True)]
        words = lines.words(np.uint64)
        for column, name in enumerate(names):
            at = begin[:, column]
            for offset in range(0, len(name), 8):
                # At least eight bytes follow the start of any part of a name: its CRLF and its value's lines.
                part = name[offset : offset + 8]
                keep = (1 << 8 * len(part)) - 1
                found = words[np.minimum(at + offset, len(words) - 1)] & np.uint64(keep)
                same &= found == np.uint64(int.from_bytes(part, "little"))
        return _Shape(names, rows[same], name_lines[same] + 2), rows[~same]

    def _split_ids(self) -> tuple[UInt64s, UInt64s]:
        lines = self._lines
        begin, end = lines.begin[self._entry + 2], lines.end[self._entry + 2]
        dash = np.full(len(begin), -1, np.int64)
        for at in range(1, min(20, int((end - begin).max()))):
            here = np.minimum(begin + at, end)
            dash = np.where((dash < 0) & (lines.data[here] == DASH), here, dash)
        if (dash < 0).any():
            raise ShapeError
        ms, seq = digits(lines.data, begin, dash), digits(lines.data, dash + 1, end)
        return ms.astype(np.uint64), seq.astype(np.uint64)

    # -- columns -----------------------------------------------------------------------------------------------

    def rows_of(self, counts: Sequence[int]) -> Index:
        return np.array(counts, np.int64)

    def ids(self) -> pa.Array:
        line = self._entry + 2
        return slices_of(self._reply, self._lines.begin[line], self._lines.end[line])

    def milliseconds(self) -> UInt64s:
        return self._ms

    def field(self, name: bytes) -> pa.Array:
        valid = np.zeros(self.count, np.bool_)
        line = np.zeros(self.count, np.int64)
        for shape in self._shapes:
            if name in shape.names:
                column = len(shape.names) - 1 - shape.names[::-1].index(name)
                valid[shape.rows] = True
                line[shape.rows] = shape.values[:, column]
        if valid.all():
            return slices_of(self._reply, self._lines.begin[line], self._lines.end[line])
        if not valid.any():
            return pa.nulls(self.count, pa.binary())
        line = line[valid]
        return slices_of(self._reply, self._lines.begin[line], self._lines.end[line], valid)

    def fields(self) -> tuple[pa.Array, pa.Array, pa.Array]:
        lines, names = self._lines, self._names_line
        offsets = np.zeros(self.count + 1, np.int32)
        np.cumsum(self._pairs, out=offsets[1:])
        return (
            pa.array(offsets),
            slices_of(self._reply, lines.begin[names], lines.end[names]),
            slices_of(self._reply, lines.begin[names + 2], lines.end[names + 2]),
        )


class ExactPage(EntryPage):
    """The exact path: parsed entry by entry. entries: [id, [name, value, …]] or [id, None] for a deleted one."""

    def __init__(self, entries: Sequence[Sequence[bytes | Sequence[bytes] | None] | None]) -> None:
        self._ids: list[bytes] = []
        self._fields: list[list[bytes]] = []
        self._rows_before = np.zeros(len(entries) + 1, np.int64)  # each entry
        self.deleted = 0
        self.last_id = None
        for at, entry in enumerate(entries):
            self._rows_before[at + 1] = self._rows_before[at]
            if entry is None:  # XAUTOCLAIM before Redis 7
                self.deleted += 1
                continue
            name, fields = entry
            assert isinstance(name, bytes)
            self.last_id = StreamId.parse(name)
            if fields is None:
                self.deleted += 1
                continue
            self._rows_before[at + 1] += 1
            self._ids.append(name)
            self._fields.append(list(fields))  # type: ignore[arg-type]  # the pair's second half is the field list
        self.count = len(self._ids)

    def rows_of(self, counts: Sequence[int]) -> Index:
        rows: Index = np.diff(self._rows_before[np.cumsum([0, *counts])])
        return rows

    def ids(self) -> pa.Array:
        return pa.array(self._ids, pa.binary())

    def milliseconds(self) -> UInt64s:
        return np.array([StreamId.parse(i).ms for i in self._ids], np.uint64)

    def field(self, name: bytes) -> pa.Array:
        values = [dict(zip(fields[0::2], fields[1::2], strict=True)).get(name) for fields in self._fields]
        return pa.array(values, pa.binary())

    def fields(self) -> tuple[pa.Array, pa.Array, pa.Array]:
        offsets = np.zeros(self.count + 1, np.int32)
        np.cumsum([len(fields) // 2 for fields in self._fields], out=offsets[1:])
        names = [name for fields in self._fields for name in fields[0::2]]
        values = [value for fields in self._fields for value in fields[1::2]]
        return pa.array(offsets), pa.array(names, pa.binary()), pa.array(values, pa.binary())


def _parse(reply: memoryview | bytes) -> list[list[bytes | list[bytes] | None] | None]:
    reader = hiredis.Reader()
    reader.feed(bytes(reply))
    parsed = reader.gets()
    if not isinstance(parsed, list):
        raise ServerReplyError(f"expected entries, the server answered with: {str(parsed)[:200]}")
    return parsed
