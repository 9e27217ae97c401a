"""A selection of rows of a page, as a page."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from spark_streams.connector.wire.entries.entry_page import EntryPage, UInt64s
from spark_streams.connector.wire.entries.lines import Index


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
