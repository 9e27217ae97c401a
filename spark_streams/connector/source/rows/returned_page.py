"""A page of entries that are returned for a retry, decoded as the first entries, whole columns at a time.

Each entry has its own fields and behind them an envelope of fifteen fields (deadletter.envelope). The stream, the ID,
the number of attempts and the time of the first failure are at fixed positions of it. Pure: Arrow and numpy in and out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.connector.deadletter.envelope import FIELDS, MARK, NAMES, ReturnedEntry, is_origin
from spark_streams.connector.source.rows.cast import cast_values
from spark_streams.connector.wire.entry_page import EntryPage, UInt64s, last_values
from spark_streams.connector.wire.lines import Index, Mask

_WIDTH = len(NAMES)
_PLAIN_ID = "^[0-9]{1,18}-[0-9]{1,18}$"  # both numbers have less than 64 bits
_TIME = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True)
class Attempts:
    """Per row. number: of this attempt, int32; first_failed: time of the first failure, timestamp, null if it is
    unknown."""

    number: pa.Array
    first_failed: pa.Array


class ReturnedPage(EntryPage):
    """raw: the page; retry_streams: of its rows, one name or an array; foreign: number of entries that no query has
    written; they are read unchanged."""

    def __init__(self, raw: EntryPage, retry_streams: str | pa.Array) -> None:
        self._raw = raw
        self.count, self.deleted, self.last_id = raw.count, raw.deleted, raw.last_id
        offsets, self._names, self._values = raw.fields()
        self._offsets: Index = offsets.to_numpy(zero_copy_only=False).astype(np.int64)
        self._retry_streams = retry_streams
        self._has_envelope = self._find_envelopes()
        self._ends = self._offsets[1:] - np.where(self._has_envelope, _WIDTH, 0)
        self.foreign = self.count - int(self._has_envelope.sum())
        self._first_fields: tuple[pa.Array, pa.Array, pa.Array] | None = None

    def _find_envelopes(self) -> Mask:
        """Return which rows end with an envelope that names the first entry's stream and ID."""
        ends = self._offsets[1:] - _WIDTH
        has_envelope: Mask = ends >= self._offsets[:-1]
        rows = np.flatnonzero(has_envelope)
        positions = pa.array((ends[rows, None] + np.arange(_WIDTH)).ravel())
        expected = pa.array(FIELDS * len(rows), pa.binary())
        is_equal = pc.equal(self._names.take(positions), expected).to_numpy(zero_copy_only=False)
        has_envelope[rows] = is_equal.reshape(len(rows), _WIDTH).all(axis=1)
        rows = np.flatnonzero(has_envelope)
        origins = [self._values.take(pa.array(ends[rows] + NAMES.index(name))) for name in ("stream", "id")]
        if _are_plain(*origins):
            return has_envelope
        pairs = zip(*[column.to_pylist() for column in origins], strict=True)
        has_envelope[rows] = [is_origin(stream, entry_id) for stream, entry_id in pairs]
        return has_envelope

    def _envelope_field(self, name: str) -> pa.Array:
        """Return a field of the envelope; null if a row has no envelope."""
        return self._values.take(pa.array(self._ends + NAMES.index(name), mask=~self._has_envelope))

    def streams(self) -> pa.Array:
        """Return the stream of each first entry (string)."""
        return pc.coalesce(self._envelope_field("stream").cast(pa.string()), self._retry_streams)

    def attempts(self) -> Attempts:
        """Return the attempt of each row; 1 for a foreign entry."""
        deliveries = self._envelope_field("deliveries")
        valid = pc.if_else(pc.match_substring_regex(deliveries, "^[1-9][0-9]{0,8}$"), deliveries, b"1")
        previous = pc.fill_null(valid, b"0").cast(pa.string()).cast(pa.int32())
        first_failed, _ = cast_values(self._envelope_field("first-failed"), _TIME)
        return Attempts(pc.add(previous, pa.scalar(1, pa.int32())), first_failed)

    def rows_of(self, counts: Sequence[int]) -> Index:
        return self._raw.rows_of(counts)

    def ids(self) -> pa.Array:
        return pc.coalesce(self._envelope_field("id"), self._raw.ids())

    def milliseconds(self) -> UInt64s:
        digits = pc.replace_substring_regex(self.ids().cast(pa.string()), "-.*", "")
        milliseconds: UInt64s = digits.cast(pa.uint64()).to_numpy()
        return milliseconds

    def field(self, name: bytes) -> pa.Array:
        return last_values(self.fields(), name)

    def fields(self) -> tuple[pa.Array, pa.Array, pa.Array]:
        if self._first_fields is None:
            marks = self._marks()
            self._first_fields = self._without_envelope() if not marks else self._with_marks(marks)
        return self._first_fields

    def _marks(self) -> dict[int, bytes]:
        """Return the marks, by row, of entries that were redriven before they were tried here. They are rare, so this
        works row by row."""
        is_redriven = pc.invert(pc.is_in(self._envelope_field("redrives"), pa.array([b"", b"0", None], pa.binary())))
        marks: dict[int, bytes] = {}
        for row in np.flatnonzero(is_redriven.to_numpy(zero_copy_only=False)).tolist():
            row_fields = slice(int(self._offsets[row]), int(self._offsets[row + 1]))
            pairs = zip(self._names[row_fields].to_pylist(), self._values[row_fields].to_pylist(), strict=True)
            returned = ReturnedEntry.parse([word for pair in pairs for word in pair])
            fields = [] if returned is None else returned.fields
            if len(fields) > 2 * (self._ends[row] - self._offsets[row]):
                marks[row] = fields[-1]
        return marks

    def _without_envelope(self) -> tuple[pa.Array, pa.Array, pa.Array]:
        positions = self._field_positions()
        offsets = self._offsets_with(np.zeros(self.count, np.int64))
        return offsets, self._names.take(positions), self._values.take(positions)

    def _field_positions(self) -> pa.Array:
        """Return the positions of the fields outside of envelopes."""
        is_outside = np.ones(len(self._names), np.bool_)
        is_outside[(self._ends[self._has_envelope, None] + np.arange(_WIDTH)).ravel()] = False
        is_outside[: self._offsets[0]] = False
        is_outside[self._offsets[-1] :] = False
        return pa.array(np.flatnonzero(is_outside))

    def _offsets_with(self, added: Index) -> pa.Array:
        """Return the offsets of fields without envelopes. added: number of further fields of each row."""
        width = self._ends - self._offsets[:-1] + added
        return pa.array(np.concatenate([[0], np.cumsum(width)]).astype(np.int32))

    def _with_marks(self, marks: dict[int, bytes]) -> tuple[pa.Array, pa.Array, pa.Array]:
        added = np.zeros(self.count, np.int64)
        added[list(marks)] = 1
        positions, offsets = self._field_positions(), self._offsets_with(added)
        names = pa.concat_arrays([self._names.take(positions), pa.array([MARK] * len(marks), pa.binary())])
        values = pa.concat_arrays([self._values.take(positions), pa.array(list(marks.values()), pa.binary())])
        is_mark = np.zeros(len(names), np.bool_)
        is_mark[offsets.to_numpy()[np.array(list(marks)) + 1] - 1] = True
        order = np.empty(len(names), np.int64)
        order[~is_mark], order[is_mark] = np.arange(len(positions)), len(positions) + np.arange(len(marks))
        return offsets, names.take(pa.array(order)), values.take(pa.array(order))


def _are_plain(streams: pa.Array, ids: pa.Array) -> bool:
    """Whether each of these is certain to be the stream and the ID of an entry, without parsing each ID."""
    if not pc.all(pc.match_substring_regex(ids, _PLAIN_ID)).as_py():
        return not len(ids)
    return all(is_origin(stream, b"1-0") for stream in streams.unique().to_pylist())
