"""Entries that do not fit the declared schema, set aside by mode DEADLETTER. Pure: Arrow and numpy in and out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from spark_streams.wire.entries.decode import EntryPage
from spark_streams.wire.entries.lines import Index

_LONGEST_VALUE = 80  # bytes of a value that a reason quotes
_MOST_FIELDS = 5  # that a reason names


@dataclass(frozen=True)
class Unfit:
    """A column with values that do not fit. field: as declared; values: binary, as the entries have them; bad: per
    row whether its value does not fit."""

    field: pa.Field
    values: pa.Array
    bad: pa.Array

    def reason(self, row: int) -> str:
        """`field 'n' is b'oops', which is no int32`."""
        return f"field {self.field.name!r} is {self.shown(row)}, which is no {self.field.type}"

    def shown(self, row: int) -> str:
        """The row's value as Python shows it, the beginning of a long one."""
        # A value may be huge: only what is quoted becomes a Python object.
        value = bytes(memoryview(self.values[row].as_buffer())[: _LONGEST_VALUE + 1])
        return repr(value) if len(value) <= _LONGEST_VALUE else f"{value[:_LONGEST_VALUE]!r}…"


@dataclass(frozen=True)
class Dead:
    """The rows of a page that do not fit. page: where they are; rows: which, ascending; reasons: a text for each."""

    page: EntryPage
    rows: Index
    reasons: list[str]

    @classmethod
    def of(cls, page: EntryPage, rows: Index, unfit: Sequence[Unfit]) -> Dead:
        """The reasons name each field that does not fit, the first few where there are many."""
        reasons: list[list[str]] = [[] for _ in rows]
        for column in unfit:
            bad = column.bad.to_numpy(zero_copy_only=False)[rows]
            for index in bad.nonzero()[0].tolist():
                if len(reasons[index]) < _MOST_FIELDS:
                    reasons[index].append(column.reason(int(rows[index])))
        return cls(page, rows, ["; ".join(of_row) for of_row in reasons])

    def entries(self) -> tuple[pa.Array, pa.Array, pa.Array, pa.Array]:
        """(ids, offsets, names, values) of these rows, untouched: binary, but for the int32 offsets; the fields of
        row i are offsets[i] … offsets[i+1] of names and values."""
        rows = pa.array(self.rows)
        fields = pa.MapArray.from_arrays(*self.page.fields()).take(rows)
        return self.page.ids().take(rows), fields.offsets, fields.keys, fields.items
