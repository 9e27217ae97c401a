"""Reply bytes of XRANGE to columns: the entries of a reply, by two ways with the same result, which tests compare.

The vectorised one (walk.py) reads all entries at once and proves its reading. The exact one parses entry by entry what
the first cannot prove, and replies that are too small for arrays to be faster.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import TypeAlias

import hiredis
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.base.ids import StreamId
from spark_streams.connector.errors import ServerReplyError, UnsupportedError
from spark_streams.connector.wire.connection import ReplyError, each_reply
from spark_streams.connector.wire.lines import DASH, Index, Mask, ShapeError, Spans
from spark_streams.connector.wire.walk import ReadReplies, Shape

UInt64s: TypeAlias = npt.NDArray[np.uint64]


class EntryPage(ABC):
    """Rows are the entries in the reply's order; deleted (nil) entries are not rows."""

    count: int  # rows
    deleted: int  # entries that the reply names but that are deleted from the stream
    last_id: StreamId | None  # ID of the reply's last entry, deleted or not; None for an empty reply

    @abstractmethod
    def rows_of(self, counts: Sequence[int]) -> Index:
        """Return the number of rows among each of these numbers of consecutive entries: less if entries are deleted."""

    @abstractmethod
    def ids(self) -> pa.Array:
        """Return each entry's ID as text (binary)."""

    @abstractmethod
    def milliseconds(self) -> UInt64s:
        """Return the first part of each ID, in ms since the epoch."""

    @abstractmethod
    def field(self, name: bytes) -> pa.Array:
        """Return each entry's value of this field (binary), null if it has none; the last value if it has several."""

    @abstractmethod
    def fields(self) -> tuple[pa.Array, pa.Array, pa.Array]:
        """Return (offsets int32, names binary, values binary): the fields of entry i are offsets[i] … offsets[i+1]."""

    def may_repeat_names(self) -> bool:
        """Whether an entry may have a field twice; False only if none has."""
        return True


def last_values(fields: tuple[pa.Array, pa.Array, pa.Array], name: bytes) -> pa.Array:
    """Return EntryPage.field of what EntryPage.fields returns."""
    offsets, names, values = fields
    field_positions = np.flatnonzero(pc.equal(names, name).to_numpy(zero_copy_only=False))
    positions = np.full(len(offsets) - 1, -1, np.int64)
    # A later field of the name replaces an earlier one.
    positions[np.searchsorted(offsets.to_numpy(), field_positions, side="right") - 1] = field_positions
    return values.take(pa.array(positions, mask=positions < 0))


def last_of_each_name(offsets: pa.Array, names: pa.Array) -> tuple[pa.Array, pa.Array] | None:
    """Return (offsets, positions) of the pairs without those whose name occurs again in the same row; None if no name
    does. offsets: int32 from 0, as of EntryPage.fields; names: without nulls."""
    bounds = offsets.to_numpy()
    rows = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    coded = names.dictionary_encode()
    keys = rows * len(coded.dictionary) + coded.indices.to_numpy()
    # np.unique returns the first position of a key: from the end, its last one.
    from_end = np.unique(keys[::-1], return_index=True)[1]
    if len(from_end) == len(keys):
        return None
    positions = np.sort(len(keys) - 1 - from_end)
    kept = np.zeros(len(bounds), np.int32)
    np.cumsum(np.bincount(rows[positions], minlength=len(bounds) - 1), out=kept[1:])
    return pa.array(kept), pa.array(positions)


def slices_of(data: memoryview | bytes, begin: Index, end: Index, valid: Mask | None = None) -> pa.Array:
    """Return a binary array of data[begin[i]:end[i]]; begin and end ascend together, data has less than 2 GiB.

    valid: its true rows take the slices in turn, and the others are null.
    """
    bounds = np.empty(2 * len(begin) + 1, np.int32)
    bounds[0:-1:2] = begin
    bounds[1::2] = end
    bounds[-1] = bounds[-2] if len(begin) else 0
    # The bytes between two slices are values, too, until every second one is taken.
    spans = pa.Array.from_buffers(pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    if valid is None:
        return spans.take(pa.array(np.arange(0, 2 * len(begin), 2, dtype=np.int32)))
    places = np.cumsum(valid, dtype=np.int32) * 2 - 2
    return spans.take(pa.array(places, mask=~valid))


# -- a walk over replies as columns: slices of the reply's own bytes ---------------------------------------------------


class VectorPage(EntryPage):
    """The entries of a walk. Raises ShapeError if the walk does."""

    def __init__(self, reply: memoryview | bytes, replies: int = 1) -> None:
        walk = ReadReplies(reply, replies)
        self._reply, self._data = reply, walk.data
        self._begin, self._end = walk.begin, walk.end
        self.counts = walk.counts
        self.last_id = StreamId.parse(bytes(reply[walk.begin[-1] : walk.end[-1]]))
        self._shapes = [shape for shape in walk.shapes if shape.names is not None]
        self._mixed = walk.mixed
        self._present = np.ones(len(walk.begin), np.bool_)
        for shape in walk.shapes:
            if shape.names is None:
                self._present[shape.rows] = False
        self.count = int(self._present.sum())
        self.deleted = len(self._present) - self.count
        if self.deleted:
            self._begin, self._end = self._begin[self._present], self._end[self._present]
            row = np.cumsum(self._present) - 1
            for part in (*self._shapes, *([self._mixed] if self._mixed else ())):
                part.rows = row[part.rows]

    def rows_of(self, counts: Sequence[int]) -> Index:
        before = np.concatenate([[0], np.cumsum(self._present)])
        rows: Index = np.diff(before[np.cumsum([0, *counts])])
        return rows

    def ids(self) -> pa.Array:
        return slices_of(self._reply, self._begin, self._end)

    def milliseconds(self) -> UInt64s:
        if not self.count:
            return np.empty(0, np.uint64)
        # IDs of one age have their dash in one place: after 13 digits for the next two centuries.
        dash = self._begin + bytes(self._reply[self._begin[0] : self._end[0]]).find(b"-")
        if (dash >= self._end).any() or (self._data[dash] != DASH).any():
            # No server sends an ID without a dash. If one did, it must not make a slice that ends before it begins.
            dash = self._begin + np.maximum(0, pc.find_substring(self.ids(), b"-").to_numpy())
        try:
            digits = slices_of(self._reply, self._begin, dash).cast(pa.string()).cast(pa.uint64())
        except pa.ArrowInvalid as error:
            raise ServerReplyError(f"the server answered with an entry whose ID is invalid: {error}") from None
        milliseconds: UInt64s = digits.to_numpy()
        return milliseconds

    def field(self, name: bytes) -> pa.Array:
        begin, end, valid = self._bounds_of(name)
        if valid is None:
            return slices_of(self._reply, begin, end)
        if not len(begin):
            return pa.nulls(self.count, pa.binary())
        return slices_of(self._reply, begin, end, valid)

    def spans(self, name: bytes) -> Spans | None:
        """Return where each entry's value of this field lies; None if an entry has none."""
        begin, end, valid = self._bounds_of(name)
        return Spans(self._data, begin, end) if valid is None and len(begin) else None

    def may_repeat_names(self) -> bool:
        shapes = [shape.names or [] for shape in self._shapes]
        return self._mixed is not None or any(len(set(names)) < len(names) for names in shapes)

    def _bounds_of(self, name: bytes) -> tuple[Index, Index, Mask | None]:
        """Return the bounds of each value of this field, and the mask of the rows that have one; None for all rows."""
        having = [shape for shape in self._shapes if shape.names is not None and name in shape.names]
        if len(having) == 1 and len(having[0].rows) == self.count:
            return *_last_of(having[0], name), None
        valid = np.zeros(self.count, np.bool_)
        begin, end = np.empty(self.count, np.int64), np.empty(self.count, np.int64)
        for shape in having:
            valid[shape.rows] = True
            begin[shape.rows], end[shape.rows] = _last_of(shape, name)
        if self._mixed is not None:
            named = self._mixed.named(name)
            rows = self._mixed.rows[self._mixed.entry[named]]
            valid[rows] = True
            # A later field of the same name comes later here, too, and replaces the earlier one.
            begin[rows], end[rows] = self._mixed.begin[named], self._mixed.end[named]
        return (begin, end, None) if valid.all() else (begin[valid], end[valid], valid)

    def fields(self) -> tuple[pa.Array, pa.Array, pa.Array]:
        width = np.zeros(self.count, np.int64)
        for shape in self._shapes:
            width[shape.rows] = len(shape.begin)
        if self._mixed is not None:
            width[self._mixed.rows] = self._mixed.count
        offsets = np.zeros(self.count + 1, np.int64)
        np.cumsum(width, out=offsets[1:])
        begin, end, name = (np.empty(offsets[-1], np.int64) for _ in range(3))
        name_places: dict[bytes, int] = {}  # index of each name among all shapes
        for shape in self._shapes:
            first = offsets[:-1][shape.rows]
            for index, field_name in enumerate(shape.names or ()):
                place = first + index
                begin[place], end[place] = shape.begin[index], shape.end[index]
                name[place] = name_places.setdefault(field_name, len(name_places))
        names = pa.array(list(name_places), pa.binary())
        if self._mixed is not None:
            mixed = self._mixed
            place = offsets[:-1][mixed.rows[mixed.entry]] + mixed.step
            begin[place], end[place] = mixed.begin, mixed.end
            order = np.argsort(place)
            name[place[order]] = len(name_places) + np.arange(len(order))
            mixed_names = slices_of(self._reply, mixed.name_begin[order], mixed.name_end[order])
            names = pa.concat_arrays([names, mixed_names])
        return pa.array(offsets.astype(np.int32)), names.take(pa.array(name)), slices_of(self._reply, begin, end)


def _last_of(shape: Shape, name: bytes) -> tuple[Index, Index]:
    """Return the bounds of the last field of that name, which is the valid one."""
    names = shape.names or []
    index = len(names) - 1 - names[::-1].index(name)
    return shape.begin[index], shape.end[index]


# -- the exact way: hiredis parses each reply; correct for every reply, and slower -------------------------------------

ParsedEntry = Sequence[bytes | Sequence[bytes] | None] | None


class ExactPage(EntryPage):
    """Entries parsed one by one: [id, [name, value, …]], or [id, None] for a deleted one."""

    def __init__(self, entries: Sequence[ParsedEntry]) -> None:
        self._ids: list[bytes] = []
        self._fields: list[Sequence[bytes]] = []
        self._dicts: list[dict[bytes, bytes]] | None = None
        self._rows_before = [0]  # per entry
        self.deleted = 0
        self.last_id = None
        last = None
        for entry in entries:
            if entry is not None:  # XAUTOCLAIM before Redis 7 returns nil for a deleted entry
                last, fields = entry
                if fields is not None:
                    self._ids.append(last)  # type: ignore[arg-type]  # the pair's first half is the id
                    self._fields.append(fields)  # type: ignore[arg-type]  # and its second half the field list
            self._rows_before.append(len(self._ids))
        self.count = len(self._ids)
        self.deleted = len(entries) - self.count
        if last is not None:
            assert isinstance(last, bytes)
            self.last_id = StreamId.parse(last)

    def rows_of(self, counts: Sequence[int]) -> Index:
        rows: Index = np.diff(np.array(self._rows_before)[np.cumsum([0, *counts])])
        return rows

    def ids(self) -> pa.Array:
        return pa.array(self._ids, pa.binary())

    def milliseconds(self) -> UInt64s:
        return np.array([StreamId.parse(entry).ms for entry in self._ids], np.uint64)

    @cached_property
    def _shape(self) -> Sequence[bytes]:
        """The names of every entry, in order; empty if they differ."""
        names = self._fields[0][0::2] if self._fields else []
        return names if all(fields[0::2] == names for fields in self._fields) else []

    def field(self, name: bytes) -> pa.Array:
        if name in self._shape:
            index = 2 * (len(self._shape) - self._shape[::-1].index(name)) - 1  # the last field of that name
            return pa.array([fields[index] for fields in self._fields], pa.binary())
        if self._dicts is None:
            self._dicts = [dict(zip(fields[0::2], fields[1::2], strict=True)) for fields in self._fields]
        return pa.array([fields.get(name) for fields in self._dicts], pa.binary())

    def fields(self) -> tuple[pa.Array, pa.Array, pa.Array]:
        offsets = np.zeros(self.count + 1, np.int32)
        np.cumsum([len(fields) // 2 for fields in self._fields], out=offsets[1:])
        names = [name for fields in self._fields for name in fields[0::2]]
        values = [value for fields in self._fields for value in fields[1::2]]
        return pa.array(offsets), pa.array(names, pa.binary()), pa.array(values, pa.binary())


def parse_entries(data: memoryview | bytes, count: int) -> list[list[ParsedEntry]]:
    """Return the entries of `count` replies in a row. Raises ServerReplyError for any other reply."""
    replies = each_reply(data)
    entries: list[list[ParsedEntry]] = []
    for place in range(count):
        try:
            parsed = next(replies, False)
        except hiredis.ProtocolError as error:
            parsed = error
        if not isinstance(parsed, list):
            reply_number = "" if count == 1 else f" (reply {place + 1} of {count})"
            text = "nothing" if parsed is False else str(parsed)[:200]
            code = parsed.code if isinstance(parsed, ReplyError) else ""
            raise ServerReplyError(f"expected entries, the server answered with: {text}{reply_number}", code)
        entries.append(parsed)
    return entries


# -- a selection of rows of a page, as a page --------------------------------------------------------------------------


class FilteredPage(EntryPage):
    """rows: the selected rows of `page`, ascending."""

    def __init__(self, page: EntryPage, rows: Index) -> None:
        self._page = page
        self._picked = rows
        self._rows = pa.array(rows)
        self.count = len(rows)
        self.deleted = page.deleted
        self.last_id = page.last_id

    def rows_of(self, counts: Sequence[int]) -> Index:
        ends = np.cumsum(self._page.rows_of(counts))
        rows: Index = np.diff(np.searchsorted(self._picked, [0, *ends]))
        return rows

    def ids(self) -> pa.Array:
        return self._page.ids().take(self._rows)

    def milliseconds(self) -> UInt64s:
        return self._page.milliseconds()[self._picked]

    def field(self, name: bytes) -> pa.Array:
        return self._page.field(name).take(self._rows)

    def fields(self) -> tuple[pa.Array, pa.Array, pa.Array]:
        fields = pa.MapArray.from_arrays(*self._page.fields()).take(self._rows)
        return fields.offsets, fields.keys, fields.items


# -- reply bytes of XRANGE to columns ----------------------------------------------------------------------------------

_SMALL = 32 << 10  # bytes of replies below which the exact way is faster: about 300 small entries
_MOST_BYTES = 2**31 - 1  # of a page: Arrow's offsets are 32 bits wide


def decode_entries(reply: memoryview | bytes) -> EntryPage:
    """Decode one XRANGE reply to columns.

    Raises ServerReplyError if the reply is an error, UnsupportedError if it has 2 GiB or more.
    """
    return decode_replies(reply, 1)[0]


def decode_replies(data: memoryview | bytes, count: int) -> tuple[EntryPage, list[int]]:
    """Decode `count` XRANGE replies in a row, as one `receive` returns them.

    Returns one page of all entries, and the number of entries of each reply. Many small replies thus cost one
    vectorised pass. The page's `last_id` is that of the last entry of all replies, and rows ascend within each reply
    only. If entries are deleted, `EntryPage.rows_of` returns the rows per reply. Raises as decode_entries does.
    """
    if len(data) > _MOST_BYTES:
        raise UnsupportedError(
            f"entries that take {len(data):,} bytes together cannot be read as one page, which holds less than 2 GiB; "
            "write smaller values, or store large values elsewhere and their names in the stream"
        )
    if len(data) > _SMALL:
        try:
            page = VectorPage(data, count)
            return page, page.counts
        except ShapeError:
            pass  # the exact way reads every reply
    replies = parse_entries(data, count)
    return ExactPage([entry for reply in replies for entry in reply]), [len(reply) for reply in replies]
