"""A record batch as field names and text values, ready for XADD. Pure: Arrow in, Arrow out.

How each type is written:

    string, binary         as they are
    integers, decimals     digits, no locale, decimals with all their places
    float, double          the shortest text that reads back as the same number; NaN, inf, -inf
    boolean                true, false
    date                   2013-01-31
    timestamp              2013-01-31T10:00:00.000000Z, UTC, six places (timestamp_ntz: without the Z)
    array, struct, map     JSON
"""

from __future__ import annotations

import base64
import datetime
import decimal
import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.errors import SchemaError


def check_writable(schema: pa.Schema) -> None:
    """Raises SchemaError where a column has a type that no field value can hold, or the schema has no column."""
    if len(schema) == 0:
        raise SchemaError("a row without columns cannot become a stream entry; select at least one column")
    for field in schema:
        if field.name.startswith("_"):
            raise SchemaError(
                f"column {field.name!r} starts with '_', which the source keeps for itself; rename or drop it"
            )
        if pa.types.is_duration(field.type) or pa.types.is_interval(field.type):
            raise SchemaError(f"column {field.name!r} is an interval ({field.type}); cast it to a number or a string")


def text_columns(batch: pa.RecordBatch, nulls: str) -> tuple[list[bytes], list[pa.Array]]:
    """Field names, and per field a binary array of its values. nulls: `omit` keeps nulls, `empty` makes them b''."""
    columns = [_text(column).cast(pa.binary()) for column in batch.columns]
    if nulls == "empty":
        columns = [pc.fill_null(column, b"") for column in columns]
    return [name.encode() for name in batch.schema.names], columns


def _text(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return column
    if pa.types.is_timestamp(kind):
        # Without its zone the value is printed as it is stored: in UTC.
        text = column.cast(pa.timestamp("us")).cast(pa.string())
        text = pc.replace_substring(text, " ", "T", max_replacements=1)
        return text if kind.tz is None else pc.binary_join_element_wise(text, "Z", "")
    if pa.types.is_nested(kind):
        return pa.array([None if v is None else json.dumps(_plain(v, kind)) for v in column.to_pylist()], pa.string())
    return column.cast(pa.string())


def _plain(value: Any, kind: pa.DataType) -> Any:
    """A Python value of an Arrow column as JSON knows it; binary is base64, as in Spark's to_json."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return {str(_plain(k, kind.key_type)): _plain(v, kind.item_type) for k, v in value}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_plain(v, kind.value_type) for v in value]
    if pa.types.is_struct(kind):
        return {field.name: _plain(value[field.name], field.type) for field in kind}
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime.datetime | datetime.date | decimal.Decimal):
        return _text(pa.array([value], kind))[0].as_py()
    return value
