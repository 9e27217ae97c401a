"""The entries of a reply as columns: the result of both ways of reading a reply."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.base.ids import StreamId
from spark_streams.connector.wire.entries.lines import Index, Mask

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
