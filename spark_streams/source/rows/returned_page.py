"""A page of entries that came back for another try, as the entries that they were: whole columns of it.

Each has its own fields, and behind them an envelope of fifteen (deadletter.envelope): there its stream, its id, how
often it was tried and since when are found by their place. Pure: Arrow and numpy in and out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.deadletter.envelope import FIELDS, MARK, NAMES
from spark_streams.deadletter.retry.returned_entry import ReturnedEntry, is_origin
from spark_streams.source.rows.cast import cast_values
from spark_streams.wire.entries.entry_page import EntryPage, UInt64s
from spark_streams.wire.entries.lines import Index, Mask

_WIDTH = len(NAMES)
_PLAIN_ID = "^[0-9]{1,18}-[0-9]{1,18}$"  # no number above 64 bits
_TIME = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True)
class Tries:
    """Per row, attempt: which try this is, int32; first_failed: when the first one failed, timestamp, null where that
    is not known."""

    attempt: pa.Array
    first_failed: pa.Array


class ReturnedPage(EntryPage):
    """raw: the page; where: the streams of its rows, one name or an array; strangers: entries that another writer has
    put there, which are read as they stand."""

    def __init__(self, raw: EntryPage, where: str | pa.Array) -> None:
        self._raw = raw
        self.count, self.deleted, self.last_id = raw.count, raw.deleted, raw.last_id
        offsets, self._names, self._values = raw.fields()
        self._offsets: Index = offsets.to_numpy(zero_copy_only=False).astype(np.int64)
        self._where = where
        self._ours = self._with_envelope()
        self._ends = self._offsets[1:] - np.where(self._ours, _WIDTH, 0)
        self.strangers = self.count - int(self._ours.sum())
        self._own: tuple[pa.Array, pa.Array, pa.Array] | None = None

    def _with_envelope(self) -> Mask:
        """Which rows end with an envelope that says where the entry stood."""
        ends = self._offsets[1:] - _WIDTH
        ours: Mask = ends >= self._offsets[:-1]
        rows = np.flatnonzero(ours)
        places = pa.array((ends[rows, None] + np.arange(_WIDTH)).ravel())
        expected = pa.array(FIELDS * len(rows), pa.binary())
        same = pc.equal(self._names.take(places), expected).to_numpy(zero_copy_only=False)
        ours[rows] = same.reshape(len(rows), _WIDTH).all(axis=1)
        rows = np.flatnonzero(ours)
        stood = [self._values.take(pa.array(ends[rows] + NAMES.index(name))) for name in ("stream", "id")]
        if _are_plain(*stood):
            return ours
        ours[rows] = [is_origin(*one) for one in zip(*[column.to_pylist() for column in stood], strict=True)]
        return ours

    def _told(self, name: str) -> pa.Array:
        """A field of the envelope; null in a row that has none."""
        return self._values.take(pa.array(self._ends + NAMES.index(name), mask=~self._ours))

    def streams(self) -> pa.Array:
        """string: where each entry stood."""
        return pc.coalesce(self._told("stream").cast(pa.string()), self._where)

    def tries(self) -> Tries:
        """What is known of the tries before: of a stranger's entry, that this is the first."""
        told = self._told("deliveries")
        known = pc.if_else(pc.match_substring_regex(told, "^[1-9][0-9]{0,8}$"), told, b"1")
        before = pc.fill_null(known, b"0").cast(pa.string()).cast(pa.int32())
        first, _ = cast_values(self._told("first-failed"), _TIME)
        return Tries(pc.add(before, pa.scalar(1, pa.int32())), first)

    def rows_of(self, counts: Sequence[int]) -> Index:
        return self._raw.rows_of(counts)

    def ids(self) -> pa.Array:
        return pc.coalesce(self._told("id"), self._raw.ids())

    def milliseconds(self) -> UInt64s:
        digits = pc.replace_substring_regex(self.ids().cast(pa.string()), "-.*", "")
        milliseconds: UInt64s = digits.cast(pa.uint64()).to_numpy()
        return milliseconds

    def field(self, name: bytes) -> pa.Array:
        offsets, names, values = self.fields()
        found = np.flatnonzero(pc.equal(names, name).to_numpy(zero_copy_only=False))
        places = np.full(self.count, -1, np.int64)
        # A later field of the name replaces an earlier one.
        places[np.searchsorted(offsets.to_numpy(), found, side="right") - 1] = found
        return values.take(pa.array(places, mask=places < 0))

    def fields(self) -> tuple[pa.Array, pa.Array, pa.Array]:
        if self._own is None:
            marked = self._marked()
            self._own = self._without_envelope() if not marked else self._with_marks(marked)
        return self._own

    def _marked(self) -> dict[int, bytes]:
        """The marks of entries that a redrive had sent back before they were tried here: rarely any, so row by row."""
        sent_back = pc.invert(pc.is_in(self._told("redrives"), pa.array([b"", b"0", None], pa.binary())))
        marks: dict[int, bytes] = {}
        for row in np.flatnonzero(sent_back.to_numpy(zero_copy_only=False)).tolist():
            inside = slice(int(self._offsets[row]), int(self._offsets[row + 1]))
            pairs = zip(self._names[inside].to_pylist(), self._values[inside].to_pylist(), strict=True)
            returned = ReturnedEntry.of([word for pair in pairs for word in pair])
            fields = [] if returned is None else returned.fields
            if len(fields) > 2 * (self._ends[row] - self._offsets[row]):
                marks[row] = fields[-1]
        return marks

    def _without_envelope(self) -> tuple[pa.Array, pa.Array, pa.Array]:
        places = self._places()
        return self._offsets_of(np.zeros(self.count, np.int64)), self._names.take(places), self._values.take(places)

    def _places(self) -> pa.Array:
        """Of all own fields, among those of the page."""
        kept = np.ones(len(self._names), np.bool_)
        kept[(self._ends[self._ours, None] + np.arange(_WIDTH)).ravel()] = False
        kept[: self._offsets[0]] = False
        kept[self._offsets[-1] :] = False
        return pa.array(np.flatnonzero(kept))

    def _offsets_of(self, more: Index) -> pa.Array:
        """more: fields that each row has besides its own."""
        width = self._ends - self._offsets[:-1] + more
        return pa.array(np.concatenate([[0], np.cumsum(width)]).astype(np.int32))

    def _with_marks(self, marks: dict[int, bytes]) -> tuple[pa.Array, pa.Array, pa.Array]:
        more = np.zeros(self.count, np.int64)
        more[list(marks)] = 1
        own, offsets = self._places(), self._offsets_of(more)
        names = pa.concat_arrays([self._names.take(own), pa.array([MARK] * len(marks), pa.binary())])
        values = pa.concat_arrays([self._values.take(own), pa.array(list(marks.values()), pa.binary())])
        is_mark = np.zeros(len(names), np.bool_)
        is_mark[offsets.to_numpy()[np.array(list(marks)) + 1] - 1] = True
        order = np.empty(len(names), np.int64)
        order[~is_mark], order[is_mark] = np.arange(len(own)), len(own) + np.arange(len(marks))
        return offsets, names.take(pa.array(order)), values.take(pa.array(order))


def _are_plain(streams: pa.Array, ids: pa.Array) -> bool:
    """Whether all of these can be an entry's stream and id, without a look at each."""
    if not pc.all(pc.match_substring_regex(ids, _PLAIN_ID)).as_py():
        return not len(ids)
    return all(is_origin(stream, b"1-0") for stream in streams.unique().to_pylist())
