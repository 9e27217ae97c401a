"""A record batch as field names and text values, ready for XADD. Pure: Arrow in, Arrow out.

How each type is written:

    string, binary         unchanged
    integers, decimals     digits, no locale, decimals with all their places
    float, double          the shortest text that is parsed as the same number; NaN, inf, -inf
    boolean                true, false
    date                   2013-01-31
    timestamp              2013-01-31T10:00:00.000000Z, UTC, six places (timestamp_ntz: without the Z)
    array, struct, map     JSON (json_text.py); in it binary as base64, decimals, NaN and infinities as strings

A map column called `_fields` is not written as JSON: each of its pairs is a field, before the other fields. A pair
whose value is null is written as a column is that is null. Columns with the stream or the ID of a row (destination.py)
are not fields.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.connector.errors import SchemaError
from spark_streams.connector.sink.encode.json_text import json_text

FIELDS = "_fields"
# Metadata columns of the source that an option can name for the sink.
USES_OF_COLUMN = {
    "_stream": '`.option("streamColumn", "_stream")` to send each row to the stream it names',
    "_id": '`.option("idColumn", "_id")` to write each row under the id it names',
    "_to": '`.option("streamColumn", "_to")` if route_dead_letters has a retry_delay',
}


def check_writable(schema: pa.Schema, apart: Collection[str] = ()) -> None:
    """Raises SchemaError if a column's name or type cannot be a field's, or if no column is a field.

    apart: columns that are not fields.
    """
    fields = [field for field in schema if field.name not in apart]
    if not fields:
        besides = f" beside {' and '.join(map(repr, apart))}" if apart else ""
        raise SchemaError(f"a row without fields cannot be a stream entry. Select at least one column{besides}")
    reserved = [field.name for field in fields if field.name.startswith("_") and not _is_fields(field)]
    if reserved:
        raise SchemaError(_not_fields(reserved))
    for field in fields:
        if _is_fields(field) and not all(map(_is_text, (field.type.key_type, field.type.item_type))):
            raise SchemaError(f"column {FIELDS!r} must be a map of strings or of binaries, not {field.type}")
        if pa.types.is_duration(field.type) or pa.types.is_interval(field.type):
            raise SchemaError(f"column {field.name!r} is an interval ({field.type}). Cast it to a number or a string")


def _is_fields(field: pa.Field) -> bool:
    return bool(field.name == FIELDS and pa.types.is_map(field.type))


def _not_fields(names: Sequence[str]) -> str:
    """Return the error message for columns whose names begin with an underscore."""
    drop = ", ".join(f'"{name}"' for name in names)
    use = " and ".join(USES_OF_COLUMN[name] for name in names if name in USES_OF_COLUMN)
    if len(names) == 1:
        begin, pronoun = f"column {names[0]!r} begins", "it"
    else:
        begin, pronoun = f"columns {', '.join(map(repr, names))} begin", "them"
    remedy = f"rename {pronoun}, or set {use}" if use else f"or rename {pronoun}"
    return f"{begin} with '_', which is reserved for the source's columns. Drop {pronoun} (`.drop({drop})`), {remedy}"


@dataclass(frozen=True)
class Fields:
    """A batch ready for XADD. names, values: of each field, as a binary array; first: the `_fields` column, if any."""

    names: list[bytes]
    values: list[pa.Array]
    first: pa.MapArray | None


def text_columns(batch: pa.RecordBatch, nulls: str, apart: Collection[str] = ()) -> Fields:
    """Return the batch's fields as text. nulls: `omit` keeps nulls, `empty` makes them b''; apart: columns that are not
    fields. Raises SchemaError."""
    names: list[bytes] = []
    columns: list[pa.Array] = []
    first = None
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if field.name in apart:
            continue
        if field.name == FIELDS:
            first = _without_nulls(column) if nulls == "omit" else column
            continue
        text = text_of(column)
        if pa.types.is_temporal(field.type) and pc.any(pc.starts_with(text, "<value")).as_py():
            raise SchemaError(
                f"column {field.name!r} holds a {field.type} that cannot be written as a date. Filter such rows out"
            )
        names.append(field.name.encode())
        columns.append(text.cast(pa.binary()))
    if nulls == "empty":
        columns = [pc.fill_null(column, b"") for column in columns]
    return Fields(names, columns, first)


def _without_nulls(maps: pa.MapArray) -> pa.MapArray:
    """Return the maps without pairs whose value is null."""
    bounds = maps.offsets.to_numpy()
    first, last = bounds[0].item(), bounds[-1].item()
    names, values = maps.keys.slice(first, last - first), maps.items.slice(first, last - first)
    if not values.null_count:
        return maps
    is_valid = values.is_valid()
    before = np.concatenate([[0], np.cumsum(is_valid.to_numpy(zero_copy_only=False))])
    offsets = pa.array(before[bounds - first].astype(np.int32))
    return pa.MapArray.from_arrays(offsets, names.filter(is_valid), values.filter(is_valid))


def _is_text(kind: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_binary, pa.types.is_large_string, pa.types.is_large_binary)
    return any(test(kind) for test in tests)


def text_of(column: pa.Array) -> pa.Array:
    """Return the column as texts for fields: strings, or unchanged binaries."""
    kind = column.type
    if _is_text(kind):
        return column
    if pa.types.is_timestamp(kind):
        # Without its zone the value is printed in UTC, as stored.
        text = column.cast(pa.timestamp("us")).cast(pa.string())
        text = pc.replace_substring(text, " ", "T", max_replacements=1)
        return text if kind.tz is None else pc.binary_join_element_wise(text, "Z", "")
    if pa.types.is_nested(kind):
        return json_text(column, text_of)
    text = column.cast(pa.string())
    if pa.types.is_decimal(kind) and pc.any(pc.match_substring(text, "E")).as_py():
        # Arrow writes small ones with an exponent.
        return pa.array([None if v is None else format(v, "f") for v in column.to_pylist()], pa.string())
    return text
