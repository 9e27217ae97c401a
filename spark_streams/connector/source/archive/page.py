"""Rows of an archive as a page of entries, with the bytes that the stream had. Pure: Arrow in and out."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.connector.source.archive_form import HEX
from spark_streams.connector.wire.entries.entry_page import EntryPage, UInt64s, last_values
from spark_streams.connector.wire.entries.lines import Index


class ArchivePage(EntryPage):
    """ids: string; fields: map of strings or of binaries, as the columns of the table."""

    def __init__(self, ids: pa.Array, fields: pa.MapArray) -> None:
        self._ids = ids
        self.count, self.deleted, self.last_id = len(ids), 0, None
        begin = fields.offsets[0].as_py() if len(ids) else 0
        length = fields.offsets[-1].as_py() - begin if len(ids) else 0
        offsets = pc.subtract(fields.offsets, pa.scalar(begin, pa.int32())) if len(ids) else pa.array([0], pa.int32())
        names, values = (part.slice(begin, length).cast(pa.binary()) for part in (fields.keys, fields.items))
        is_binary = pa.types.is_binary(fields.type.key_type)
        self._fields = (offsets, names, values)
        if not is_binary and pc.any(pc.equal(names, HEX.encode())).as_py():
            self._fields = _without_hex(offsets, names, values)

    def rows_of(self, counts: Sequence[int]) -> Index:
        return np.array(counts, np.int64)

    def ids(self) -> pa.Array:
        return self._ids.cast(pa.binary())

    def milliseconds(self) -> UInt64s:
        return id_parts(self._ids)[0]

    def field(self, name: bytes) -> pa.Array:
        return last_values(self._fields, name)

    def fields(self) -> tuple[pa.Array, pa.Array, pa.Array]:
        return self._fields


def id_parts(ids: pa.Array) -> tuple[UInt64s, UInt64s]:
    """Return the milliseconds and the sequence numbers of IDs (string)."""
    ms, seq = (pc.replace_substring_regex(ids, pattern, "").cast(pa.uint64()).to_numpy() for pattern in ("-.*", ".*-"))
    return ms, seq


def _without_hex(offsets: pa.Array, names: pa.Array, values: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Return the fields with those of `rstream:hex` in place of it. Such entries are rare: this works row by row."""
    bounds = offsets.to_pylist()
    pairs = list(zip(names.to_pylist(), values.to_pylist(), strict=True))
    rows = []
    for begin, end in itertools.pairwise(bounds):
        fields = pairs[begin:end]
        if len(fields) == 1 and fields[0][0] == HEX.encode():
            words = [bytes.fromhex(word.decode()) for word in fields[0][1].split(b" ")]
            fields = list(zip(words[::2], words[1::2], strict=True))
        rows.append(fields)
    column = pa.array(rows, pa.map_(pa.binary(), pa.binary()))
    return column.offsets, column.keys, column.items
