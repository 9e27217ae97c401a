"""Page of a dead-letter stream as columns: the envelopes, and the original fields. Pure: Arrow and numpy.

No Python object is created per dead letter.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.connector.deadletter.envelope import FIELDS, NAMES, PREFIX, text
from spark_streams.connector.wire.entries.entry_page import EntryPage
from spark_streams.connector.wire.entries.lines import Index, Mask

KIND = ("stream", "stage", "reason", "error")
_PLACES = {name: place for place, name in enumerate(NAMES)}


class DeadLetterPage:
    """Rows are the entries of the page, in order. ids: binary, the dead letters' own IDs."""

    def __init__(self, entries: EntryPage) -> None:
        self.count = entries.count
        self.ids: pa.Array = entries.ids()
        self._entries = entries
        bounds, self._names, self._values = entries.fields()
        self._bounds: Index = bounds.to_numpy().astype(np.int64)
        self._where, self._tail = self._find_envelopes()
        self._columns: dict[str, pa.Array] = {}

    def _find_envelopes(self) -> tuple[npt.NDArray[np.int64], Index]:
        """Return (per name and row, the index of the envelope's field or -1; per row, the envelope's number of fields).

        The envelope is the longest tail of distinct names, as in envelope.open_envelope for one dead letter.
        """
        field_names = pa.array(FIELDS, pa.binary())
        place = pc.fill_null(pc.index_in(self._names, value_set=field_names), -1).to_numpy(zero_copy_only=False)
        place = np.append(place, -1)  # for rows without fields
        where = np.full((len(NAMES), self.count), -1, np.int64)
        tail = np.zeros(self.count, np.int64)
        rows = np.arange(self.count)
        seen = np.zeros(self.count, np.int64)
        for back in range(1, len(NAMES) + 1):
            positions = self._bounds[rows + 1] - back
            inside = positions >= self._bounds[rows]
            code = np.where(inside, place[np.maximum(positions, 0)], -1)
            is_field = (code >= 0) & ((seen[rows] >> np.maximum(code, 0)) & 1 == 0)
            rows, positions, code = rows[is_field], positions[is_field], code[is_field]
            where[code, rows] = positions
            seen[rows] |= 1 << code
            tail[rows] += 1
        return where, tail

    def envelope_column(self, name: str) -> pa.Array:
        """Return this field of the envelopes, binary; null if an envelope lacks it."""
        if name not in self._columns:
            positions = self._where[_PLACES[name]]
            self._columns[name] = self._values.take(pa.array(positions, mask=positions < 0))
        return self._columns[name]

    def kind(self) -> list[pa.Array]:
        """Return the columns by which dead letters are counted: KIND."""
        return [self.envelope_column(name) for name in KIND]

    def are_dead_letters(self) -> Mask:
        """Return which entries name the stream and the ID of their original entry."""
        mask: Mask = (self._where[_PLACES["stream"]] >= 0) & (self._where[_PLACES["id"]] >= 0)
        return mask

    def field(self, name: bytes) -> pa.Array:
        """Return the original field of this name, binary: null if there is none, the last one if there are several."""
        if not name.startswith(PREFIX.encode()):
            return self._entries.field(name)
        originals = self.originals(np.arange(self.count))
        pairs = pc.map_lookup(originals, pa.scalar(name, pa.binary()), "last")
        return pairs.cast(pa.binary())

    def originals(self, rows: Index) -> pa.MapArray:
        """Return map<binary, binary>: the original fields of these rows, in order and byte for byte."""
        return self._fields(rows, self._tail[rows])

    def all_fields(self, rows: Index) -> pa.MapArray:
        """Return the same with the envelope."""
        return self._fields(rows, np.zeros(len(rows), np.int64))

    def _fields(self, rows: Index, without: Index) -> pa.MapArray:
        begin, width = self._bounds[rows], self._bounds[rows + 1] - self._bounds[rows] - without
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(width, out=offsets[1:])
        positions = pa.array(np.arange(offsets[-1]) + np.repeat(begin - offsets[:-1], width))
        return pa.MapArray.from_arrays(
            pa.array(offsets.astype(np.int32)), self._names.take(positions), self._values.take(positions)
        )


def by_value(column: pa.Array, function: Callable[[str], int]) -> npt.NDArray[np.generic]:
    """Return the function's result for each row's text (empty for null); it is called once per distinct value."""
    coded = pc.fill_null(column, b"").dictionary_encode()
    results = np.array([function(text(value)) for value in coded.dictionary.to_pylist()])
    per_row: npt.NDArray[np.generic] = results[coded.indices.to_numpy()] if len(results) else np.empty(0)
    return per_row
