"""The result of a walk over replies as columns: slices of the reply's own bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.base.ids import StreamId
from spark_streams.connector.errors import ServerReplyError
from spark_streams.connector.wire.entries.entry_page import EntryPage, UInt64s, slices_of
from spark_streams.connector.wire.entries.lines import DASH, Index, Mask
from spark_streams.connector.wire.entries.spans import Spans
from spark_streams.connector.wire.entries.walk import ReadReplies, Shape


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
