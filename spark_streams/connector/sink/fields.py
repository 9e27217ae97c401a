"""A record batch as field names and text values, ready for XADD. Pure: Arrow in, Arrow out.

How each type is written:

    string, binary         unchanged
    integers, decimals     digits, no locale, decimals with all their places
    float, double          the shortest text that is parsed as the same number; NaN, inf, -inf
    boolean                true, false
    date                   2013-01-31
    timestamp              2013-01-31T10:00:00.000000Z, UTC, six places (timestamp_ntz: without the Z)
    array, struct, map     JSON

A map column called `_fields` is not written as JSON: each of its pairs is a field, before the other fields. A pair
whose value is null is written as a column is that is null. Columns with the stream or the ID of a row (Destination in
chunks.py) are not fields.

In JSON, values are written in the same way, except for:

    null                        null
    integer, finite float       a number
    boolean                     true, false
    NaN, infinities, decimals   strings: JSON has no NaN and no infinities, and readers round decimals
    date, timestamp             strings
    binary                      a string, base64, as in Spark's to_json
    map                         an object; keys of any type are written as strings

A nested column is written from the inside out: the children's texts are joined by the parent's offsets, so no value
becomes a Python object.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.connector.errors import SchemaError

FIELDS = "_fields"
# Metadata columns of the source that an option can name for the sink.
USES_OF_COLUMN = {
    "_stream": '`.option("streamColumn", "_stream")` to send each row to the stream it names',
    "_id": '`.option("idColumn", "_id")` to write each row under the id it names',
    "_to": '`.option("streamColumn", "_to")` if route_dead_letters has a retry_delay',
}


_NEEDS_ESCAPE = '["\\\\\x00-\x1f]'
_CONTROL = "[\x00-\x1f]"
_ESCAPES = (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))


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
        try:
            text = text_of(column)
        except SchemaError as error:
            raise SchemaError(f"column {field.name!r} holds {error.message}") from None
        names.append(field.name.encode())
        columns.append(text.cast(pa.binary()))
    if nulls == "empty":
        columns = [pc.fill_null(column, b"") for column in columns]
    return Fields(names, columns, first)


def _without_nulls(maps: pa.MapArray) -> pa.MapArray:
    """Return the maps without pairs whose value is null."""
    bounds, names, values = maps.offsets.to_numpy(), _children(maps, maps.keys), _children(maps, maps.items)
    if not values.null_count:
        return maps
    is_valid = values.is_valid()
    before = np.concatenate([[0], np.cumsum(is_valid.to_numpy(zero_copy_only=False))])
    offsets = pa.array(before[bounds - bounds[0]].astype(np.int32))
    return pa.MapArray.from_arrays(offsets, names.filter(is_valid), values.filter(is_valid))


def _is_text(kind: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_binary, pa.types.is_large_string, pa.types.is_large_binary)
    return any(test(kind) for test in tests)


def text_of(column: pa.Array) -> pa.Array:
    """Return the column as texts for fields: strings, or unchanged binaries. Raises SchemaError, without its name."""
    kind = column.type
    if _is_text(kind):
        return column
    if pa.types.is_nested(kind):
        return json_text(column)
    # Without its zone a timestamp is printed in UTC, as stored.
    text = (column.cast(pa.timestamp("us")) if pa.types.is_timestamp(kind) else column).cast(pa.string())
    if pa.types.is_temporal(kind) and pc.any(pc.starts_with(text, "<value")).as_py():
        raise SchemaError(f"a {kind} that cannot be written as a date. Filter such rows out")
    if pa.types.is_timestamp(kind):
        text = pc.replace_substring(text, " ", "T", max_replacements=1)
        return text if kind.tz is None else pc.binary_join_element_wise(text, "Z", "")
    if pa.types.is_decimal(kind) and pc.any(pc.match_substring(text, "E")).as_py():
        # Arrow writes small ones with an exponent.
        return pa.array([None if v is None else format(v, "f") for v in column.to_pylist()], pa.string())
    return text


def json_text(column: pa.Array) -> pa.Array:
    """Return each value as JSON (string), null if the value is null."""
    if column.null_count:
        present = _json(column.drop_null())
        places = np.cumsum(pc.is_valid(column).to_numpy(zero_copy_only=False)) - 1
        return present.take(pa.array(places, mask=pc.is_null(column).to_numpy(zero_copy_only=False)))
    return _json(column)


def _json(column: pa.Array) -> pa.Array:
    """As json_text, for a column without nulls."""
    kind = column.type
    if not len(column):
        # Lists and maps without rows have one offset, which Java's Arrow may omit: it must not be read.
        return pa.array([], pa.string())
    if pa.types.is_map(kind):
        keys = _key(_children(column, column.keys))
        pairs = _join(_quoted(keys), ":", _element(_children(column, column.items)))
        return _join("{", _joined(column, pairs), "}")
    if pa.types.is_struct(kind):
        pieces: list[pa.Array | str] = []
        for index, field in enumerate(kind):
            pieces += ["," if index else "{", json.dumps(field.name, ensure_ascii=False) + ":"]
            pieces.append(_element(column.field(index)))
        return _join(*pieces, "}") if pieces else pa.repeat(pa.scalar("{}"), len(column))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _join("[", _joined(column, _element(_children(column, column.values))), "]")
    return _scalars(column)


def _children(column: pa.Array, values: pa.Array) -> pa.Array:
    """Return the children of these rows: a slice holds the children of all rows."""
    first, last = column.offsets[0].as_py(), column.offsets[-1].as_py()
    return values.slice(first, last - first)


def _joined(column: pa.Array, texts: pa.Array) -> pa.Array:
    """Join the texts of each row's children with commas."""
    offsets = column.offsets.to_numpy()
    lists = pa.LargeListArray.from_arrays(pa.array((offsets - offsets[0]).astype(np.int64)), texts)
    return pc.binary_join(lists, ",")


def _element(column: pa.Array) -> pa.Array:
    return pc.fill_null(json_text(column), "null")


def _key(keys: pa.Array) -> pa.Array:
    """Return a map's keys as texts that are not quoted yet."""
    if pa.types.is_binary(keys.type) or pa.types.is_large_binary(keys.type):
        return _base64(keys)
    return json_text(keys) if pa.types.is_nested(keys.type) else text_of(keys).cast(pa.string())


def _scalars(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _join('"', _base64(column), '"')
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _quoted(column.cast(pa.string()))
    if pa.types.is_floating(kind):
        finite = pc.is_finite(column)
        numbers = text_of(column)
        return numbers if pc.all(finite).as_py() else pc.if_else(finite, numbers, _quoted(_not_finite(column)))
    if pa.types.is_decimal(kind) or pa.types.is_temporal(kind):
        return _join('"', text_of(column), '"')
    return text_of(column)


def _not_finite(column: pa.Array) -> pa.Array:
    infinite = pc.if_else(pc.greater(column, 0), "Infinity", "-Infinity")
    return pc.if_else(pc.is_nan(column), "NaN", infinite)


def _quoted(texts: pa.Array) -> pa.Array:
    """Return the texts as JSON strings; characters beyond ASCII are not escaped."""
    if pc.any(pc.match_substring_regex(texts, _NEEDS_ESCAPE)).as_py():
        plain = texts
        for character, escape in _ESCAPES:
            texts = pc.replace_substring(texts, character, escape)
        has_control = pc.match_substring_regex(texts, _CONTROL)
        if pc.any(has_control).as_py():
            rare = [json.dumps(value, ensure_ascii=False)[1:-1] for value in plain.filter(has_control).to_pylist()]
            texts = pc.replace_with_mask(texts, has_control, pa.array(rare, pa.string()))
    return _join('"', texts, '"')


def _base64(column: pa.Array) -> pa.Array:
    values = column.to_pylist()
    return pa.array([None if value is None else base64.b64encode(value).decode() for value in values], pa.string())


def _join(*pieces: pa.Array | str) -> pa.Array:
    return pc.binary_join_element_wise(*pieces, "")
