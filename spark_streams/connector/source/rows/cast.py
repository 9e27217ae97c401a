"""Cast field values (binary columns) to the declared Arrow types, whole columns at a time, and tell what does not fit.

Scalars are read from their texts (text_forms.py), arrays, structs and maps from JSON (nested_json.py). Pure: Arrow in,
Arrow out.
"""

from __future__ import annotations

import functools
import string
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.connector.errors import SchemaError
from spark_streams.connector.source.rows.nested_json import (
    LONGEST_QUOTED,
    is_nested,
    members_that_do_not_fit,
    quoted,
    read_json,
)
from spark_streams.connector.source.rows.text_forms import (
    assemble,
    bisect_cast,
    bytes_of,
    cast_texts,
    empty_as_null,
    nulls_instead,
    scalar_kind,
)

_SMALL = 1000  # texts; validating the UTF-8 of fewer takes less time than a search for bytes that are not ASCII
_LETTERS = string.ascii_letters.encode() + bytes(range(128, 256))
_FORM = bytes.maketrans(_LETTERS + string.digits.encode(), b"x" * len(_LETTERS) + b"9" * 10)
_LONGEST_JSON = 1 << 20  # bytes of a JSON value that is read again for a reason


def check_castable(schema: pa.Schema, skip: frozenset[str]) -> None:
    """Raise SchemaError if values cannot be cast to a declared type."""
    for field in schema:
        if field.name not in skip and (unsupported := _unsupported_type(field)) is not None:
            raise SchemaError(
                f"column {field.name!r} is declared {unsupported}: fields are read as string, binary, boolean, "
                "integer, float, decimal, date, timestamp or time, or from JSON as arrays, structs and maps of these. "
                "Declare the column STRING and use parse_json, from_json or a cast"
            )


def _unsupported_type(field: pa.Field) -> str | None:
    """Return the name of the first type in this declaration that cannot be read."""
    to = field.type
    if pa.types.is_struct(to) and any(part.metadata and b"variant" in part.metadata for part in to):
        return "VARIANT"
    if pa.types.is_struct(to) and any(part.metadata and b"srid" in part.metadata for part in to):
        return "GEOMETRY or GEOGRAPHY"
    if pa.types.is_map(to) and is_nested(to.key_type):
        return f"{to}, a map whose keys are not scalars"
    if is_nested(to) and to.num_fields:
        parts = [to.field(index) for index in range(to.num_fields)]
        return next((name for part in parts if (name := _unsupported_type(part)) is not None), None)
    is_supported = pa.types.is_string(to) or pa.types.is_binary(to) or scalar_kind(to) is not None
    return None if is_supported else str(to)


def cast_values(
    values: pa.Array, to: pa.DataType, null_values: Collection[bytes] = ()
) -> tuple[pa.Array, pa.Array | None]:
    """Return the column, and a boolean array of the rows whose value does not fit, or None if all fit.

    values: binary with nulls. A value that does not fit is null in the column. Text is UTF-8; in a STRING column bytes
    that are not UTF-8 become U+FFFD and count as fitting. The empty text is null in every type but STRING and BINARY.
    null_values: texts that are null, also as a part of a JSON value.
    """
    present = nulls_instead(values, null_values) if null_values else values
    if pa.types.is_binary(to):
        return present, None
    if is_nested(to):
        return read_json(empty_as_null(_decode(present)), to, null_values)
    return cast_texts(_decode(present), to)


def _decode(values: pa.Array) -> pa.Array:
    """Return values as text; bytes that are not UTF-8 become U+FFFD."""
    text = values.view(pa.string())
    if len(text) > _SMALL and np.frombuffer(bytes_of(text), np.uint8).max(initial=0) < 0x80:
        return text  # ASCII
    try:
        text.validate(full=True)
        return text
    except pa.ArrowInvalid:
        pieces = [
            (_decode_each(values.take(pa.array(rows))) if column is None else column, rows)
            for column, rows in bisect_cast(_decode_all, 50, values, np.arange(len(values)), pa.string())
        ]
        return assemble(pieces, len(values), pa.string())


def _decode_all(values: pa.Array, to: pa.DataType) -> pa.Array:
    return values.cast(to)


def _decode_each(values: pa.Array) -> pa.Array:
    texts = [None if value is None else value.decode("utf-8", "replace") for value in values.to_pylist()]
    return pa.array(texts, pa.string())


# -- what does not fit -------------------------------------------------------------------------------------------------


@functools.cache
def in_sql(to: pa.DataType) -> str:
    """Return the type as a schema declares it."""
    from pyspark.sql.pandas.types import from_arrow_type  # `rstream init` imports this module without Spark

    name = from_arrow_type(to, prefer_timestamp_ntz=True).simpleString()
    return name if is_nested(to) else name.upper()


@dataclass(frozen=True)
class Unfit:
    """A column with values that do not fit."""

    field: pa.Field  # the declared column
    values: pa.Array  # binary, unchanged
    bad: pa.Array  # mask of rows whose value does not fit
    null_values: tuple[bytes, ...] = ()  # texts that are null

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
        texts = _decode(self.values.take(pa.array(rows)))
        members = members_that_do_not_fit(texts, self.field.type, self.null_values)
        return {int(rows[index]): member for index, member in members.items()}

    def form(self, row: int) -> str:
        """Return the repr of the value's beginning with x for letters and 9 for digits: what a log may hold."""
        return quoted(self._beginning(row).translate(_FORM))

    def shown(self, row: int) -> str:
        """Return the repr of the row's value, or of its beginning if it is long."""
        return quoted(self._beginning(row))

    def _beginning(self, row: int) -> bytes:
        """Return what `quoted` needs of the row's value: it may be huge, and only this becomes a Python object."""
        return bytes(memoryview(self.values[row].as_buffer())[: LONGEST_QUOTED + 1])
