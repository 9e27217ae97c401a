"""Entries that do not fit the declared schema, for mode DEADLETTER. Pure: Arrow and numpy in and out."""

from __future__ import annotations

import functools
import string
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.connector.source.rows.cast import members_of
from spark_streams.connector.source.rows.nested_json import is_nested
from spark_streams.connector.wire.entries.entry_page import EntryPage
from spark_streams.connector.wire.entries.lines import Index

_LONGEST_VALUE = 80  # bytes of a value that a reason quotes
_LETTERS = string.ascii_letters.encode() + bytes(range(128, 256))
_FORM = bytes.maketrans(_LETTERS + string.digits.encode(), b"x" * len(_LETTERS) + b"9" * 10)
_LONGEST_JSON = 1 << 20  # bytes of a JSON value that is read again for a reason
_MAX_FIELDS = 5  # that a reason names


@functools.cache
def in_sql(to: pa.DataType) -> str:
    """Return the type as a schema declares it."""
    from pyspark.sql.pandas.types import from_arrow_type  # `rstream init` imports this module without Spark

    name = from_arrow_type(to, prefer_timestamp_ntz=True).simpleString()
    return name if is_nested(to) else name.upper()


@dataclass(frozen=True)
class Unfit:
    """A column with values that do not fit. field: the declared column; values: binary, unchanged; bad: mask of rows
    whose value does not fit; null_values: texts that are null."""

    field: pa.Field
    values: pa.Array
    bad: pa.Array
    null_values: tuple[bytes, ...] = ()

    def reason(self, row: int) -> str:
        """Return a text such as `field 'n' is b'oops', which does not fit INT`. Of JSON it names the member, too, as
        `(payload.qty is 'NA')`."""
        told = f"field {self.field.name!r} is {self.shown(row)}, which does not fit {in_sql(self.field.type)}"
        return told + self._member(row)

    def _member(self, row: int) -> str:
        if not is_nested(self.field.type) or self.values[row].as_buffer().size > _LONGEST_JSON:
            return ""
        member = self._members.get(row)
        return " (it is not JSON)" if member is None else f" ({self.field.name}{member[0]} is {member[1]})"

    @functools.cached_property
    def _members(self) -> dict[int, tuple[str, str]]:
        """The first part of each row that does not fit. All rows are read at once: one by one takes 1.5 ms each."""
        sizes = pc.fill_null(pc.binary_length(self.values), 0)
        rows = np.flatnonzero(pc.and_(self.bad, pc.less_equal(sizes, _LONGEST_JSON)).to_numpy(zero_copy_only=False))
        members = members_of(self.values.take(pa.array(rows)), self.field.type, self.null_values)
        return {int(rows[index]): member for index, member in members.items()}

    def form(self, row: int) -> str:
        """Return the repr of the value's beginning with x for letters and 9 for digits: what a log may hold."""
        value = bytes(memoryview(self.values[row].as_buffer())[: _LONGEST_VALUE + 1]).translate(_FORM)
        return repr(value) if len(value) <= _LONGEST_VALUE else f"{value[:_LONGEST_VALUE]!r}…"

    def shown(self, row: int) -> str:
        """Return the repr of the row's value, or of its beginning if it is long."""
        # A value may be huge: only the quoted part becomes a Python object.
        value = bytes(memoryview(self.values[row].as_buffer())[: _LONGEST_VALUE + 1])
        return repr(value) if len(value) <= _LONGEST_VALUE else f"{value[:_LONGEST_VALUE]!r}…"


@dataclass(frozen=True)
class Dead:
    """Rows of a page that do not fit. rows: their ascending indexes; reasons: a text for each."""

    page: EntryPage
    rows: Index
    reasons: list[str]

    @classmethod
    def with_reasons(cls, page: EntryPage, rows: Index, unfit: Sequence[Unfit]) -> Dead:
        """Return these rows with reasons, which name the fields that do not fit, the first few of many."""
        reasons: list[list[str]] = [[] for _ in rows]
        for column in unfit:
            bad = column.bad.to_numpy(zero_copy_only=False)[rows]
            for index in bad.nonzero()[0].tolist():
                if len(reasons[index]) < _MAX_FIELDS:
                    reasons[index].append(column.reason(int(rows[index])))
        return cls(page, rows, ["; ".join(row_reasons) for row_reasons in reasons])

    def entries(self) -> tuple[pa.Array, pa.Array, pa.Array, pa.Array]:
        """Return (ids, offsets, names, values) of these rows, unchanged: binary, with int32 offsets. The fields of row
        i are offsets[i] … offsets[i+1] of names and values."""
        rows = pa.array(self.rows)
        fields = pa.MapArray.from_arrays(*self.page.fields()).take(rows)
        return self.page.ids().take(rows), fields.offsets, fields.keys, fields.items
