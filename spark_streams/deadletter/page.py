"""A page of a dead-letter stream as columns: the envelopes, and the original fields. Pure: Arrow and numpy.

Nothing here makes a Python object per dead letter.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.deadletter.envelope import FIELDS, NAMES, PREFIX, text
from spark_streams.wire.entries.decode import EntryPage
from spark_streams.wire.entries.lines import Index, Mask

KIND = ("stream", "stage", "reason", "error")
_PLACES = {name: place for place, name in enumerate(NAMES)}


class DeadLetterPage:
    """Rows are the entries of the page, in order. ids: binary, each dead letter's own id."""

    def __init__(self, entries: EntryPage) -> None:
        self.count = entries.count
        self.ids: pa.Array = entries.ids()
        self._entries = entries
        bounds, self._names, self._values = entries.fields()
        self._bounds: Index = bounds.to_numpy().astype(np.int64)
        self._where, self._tail = self._find_envelopes()
        self._told: dict[str, pa.Array] = {}

    def _find_envelopes(self) -> tuple[npt.NDArray[np.int64], Index]:
        """(per name and row, the place of the envelope's field or -1; per row, how many fields the envelope has).

        The longest tail of distinct names, as envelope.opened does it for one dead letter.
        """
        known = pa.array(FIELDS, pa.binary())
        place = pc.fill_null(pc.index_in(self._names, value_set=known), -1).to_numpy(zero_copy_only=False)
        place = np.append(place, -1)  # for rows that have nothing
        where = np.full((len(NAMES), self.count), -1, np.int64)
        tail = np.zeros(self.count, np.int64)
        rows = np.arange(self.count)
        seen = np.zeros(self.count, np.int64)
        for back in range(1, len(NAMES) + 1):
            at = self._bounds[rows + 1] - back
            inside = at >= self._bounds[rows]
            code = np.where(inside, place[np.maximum(at, 0)], -1)
            found = (code >= 0) & ((seen[rows] >> np.maximum(code, 0)) & 1 == 0)
            rows, at, code = rows[found], at[found], code[found]
            where[code, rows] = at
            seen[rows] |= 1 << code
            tail[rows] += 1
        return where, tail

    def told(self, name: str) -> pa.Array:
        """What the envelopes say, binary; null where one lacks the name."""
        if name not in self._told:
            at = self._where[_PLACES[name]]
            self._told[name] = self._values.take(pa.array(at, mask=at < 0))
        return self._told[name]

    def kind(self) -> list[pa.Array]:
        """The columns by which dead letters are counted: KIND."""
        return [self.told(name) for name in KIND]

    def are_dead_letters(self) -> Mask:
        """Which entries say where they came from."""
        known: Mask = (self._where[_PLACES["stream"]] >= 0) & (self._where[_PLACES["id"]] >= 0)
        return known

    def field(self, name: bytes) -> pa.Array:
        """The original field of that name, binary; null where there is none; the last one where there are several."""
        if not name.startswith(PREFIX.encode()):
            return self._entries.field(name)
        originals = self.originals(np.arange(self.count))
        pairs = pc.map_lookup(originals, pa.scalar(name, pa.binary()), "last")
        return pairs.cast(pa.binary())

    def originals(self, rows: Index) -> pa.MapArray:
        """map<binary, binary>: the original fields of these rows, in order and byte for byte."""
        return self._fields(rows, self._tail[rows])

    def whole(self, rows: Index) -> pa.MapArray:
        """The same with the envelope."""
        return self._fields(rows, np.zeros(len(rows), np.int64))

    def _fields(self, rows: Index, without: Index) -> pa.MapArray:
        begin, width = self._bounds[rows], self._bounds[rows + 1] - self._bounds[rows] - without
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(width, out=offsets[1:])
        at = pa.array(np.arange(offsets[-1]) + np.repeat(begin - offsets[:-1], width))
        return pa.MapArray.from_arrays(pa.array(offsets.astype(np.int32)), self._names.take(at), self._values.take(at))


def by_value(column: pa.Array, of: Callable[[str], int]) -> npt.NDArray[np.generic]:
    """`of` each row's value as text (empty for null), called once for each distinct value."""
    coded = pc.fill_null(column, b"").dictionary_encode()
    known = np.array([of(text(value)) for value in coded.dictionary.to_pylist()])
    found: npt.NDArray[np.generic] = known[coded.indices.to_numpy()] if len(known) else np.empty(0)
    return found
