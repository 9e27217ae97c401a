"""Entries of many shapes, walked in parallel: the first field of all of them, then the second, whatever the names."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_streams.connector.wire.entries.headers import NUMBER, bounds_of
from spark_streams.connector.wire.entries.lines import DOLLAR, STAR, Bytes, Index, Mask, ShapeError

_CR, _LF = b"\r\n"
# Pages with entries of more fields than this, and fewer of them than FEW_ROWS, are parsed one by one faster.
MANY_FIELDS, FEW_ROWS = 100, 30
_BEHIND = 3 + NUMBER  # bytes after a part that is followed by another: its line end, and the next header


@dataclass
class MixedShapes:
    """Fields of entries: all first fields, then all second ones, …

    rows: rows of the entries, ascending. count: fields of each. Per field: entry: index into rows; step: its position
    in the entry; the bounds of its name and of its value.
    """

    data: Bytes
    rows: Index
    count: Index
    entry: Index
    step: Index
    name_begin: Index
    name_end: Index
    begin: Index
    end: Index

    def named(self, name: bytes) -> Mask:
        """Return which fields have this name."""
        same: Mask = self.name_end - self.name_begin == len(name)
        if name:
            like = np.flatnonzero(same)
            # A huge name is compared in pieces.
            for offset in range(0, len(name), 64):
                piece = name[offset : offset + 64]
                words = np.ndarray((len(self.data) - len(piece) + 1,), f"V{len(piece)}", self.data, 0, (1,))
                like = like[words[self.name_begin[like] + offset] == np.void(piece)]
            same = np.zeros(len(same), np.bool_)
            same[like] = True
        return same


def walk_mixed(data: Bytes, rows: Index, part_end: Index) -> tuple[MixedShapes, Index]:
    """Return the fields of these entries, and the end of each entry. part_end: the end of each ID.

    Raises ShapeError, or IndexError, for any other bytes.
    """
    after, parts = bounds_of(data, _behind(data, part_end, STAR), part_end + 3)
    parts = parts - after
    if (parts % 2 != 0).any() or (parts == 0).any():
        raise ShapeError
    count = parts // 2
    if count.max() > MANY_FIELDS and count.sum() < FEW_ROWS * count.max():
        raise ShapeError
    finish = np.empty(len(rows), np.int64)
    fields: list[tuple[Index, ...]] = []
    remaining = np.arange(len(rows))
    part_end = after - 2
    step = 0
    while len(remaining):
        name_begin, name_end = bounds_of(data, _behind(data, part_end), part_end + 3)
        begin, end = bounds_of(data, _behind(data, name_end), name_end + 3)
        fields.append((remaining, np.full(len(remaining), step), name_begin, name_end, begin, end))
        step += 1
        finish[remaining] = end + 2
        more = count[remaining] > step
        remaining, part_end = remaining[more], end[more]
    return MixedShapes(data, rows, count, *(np.concatenate(part) for part in zip(*fields, strict=True))), finish


def _behind(data: Bytes, part_end: Index, kind: int = DOLLAR) -> Bytes:
    """Return the numbers in the headers after parts that end here. Raises ShapeError if a part has no line end, or if
    a header is of another kind."""
    windows = np.ndarray((len(data) - _BEHIND + 1,), f"V{_BEHIND}", data, 0, (1,))[part_end]
    parts = windows.view(np.uint8).reshape(len(part_end), _BEHIND)
    for column, byte in enumerate((_CR, _LF, kind)):
        if np.count_nonzero(parts[:, column] == byte) < len(parts):
            raise ShapeError
    number: Bytes = parts[:, 3:]
    return number
