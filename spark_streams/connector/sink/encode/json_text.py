"""Arrays, structs and maps as JSON texts, whole columns at a time. Pure: Arrow in, Arrow out.

A nested column is written from the inside out: the children's texts are joined by the parent's offsets, so no value
becomes a Python object. Values in it are written as in fields.py, except for:

    null                        null
    integer, finite float       a number
    boolean                     true, false
    NaN, infinities, decimals   strings: JSON has no NaN and no infinities, and readers round decimals
    date, timestamp             strings
    binary                      a string, base64, as in Spark's to_json
    map                         an object; keys of any type are written as strings
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Text = Callable[[pa.Array], pa.Array]

_NEEDS_ESCAPE = '["\\\\\x00-\x1f]'
_CONTROL = "[\x00-\x1f]"
_ESCAPES = (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))


def json_text(column: pa.Array, text: Text) -> pa.Array:
    """Return each value as JSON (string), null if the value is null. text: writes a value that is not nested."""
    if column.null_count:
        present = _json(column.drop_null(), text)
        places = np.cumsum(pc.is_valid(column).to_numpy(zero_copy_only=False)) - 1
        return present.take(pa.array(places, mask=pc.is_null(column).to_numpy(zero_copy_only=False)))
    return _json(column, text)


def _json(column: pa.Array, text: Text) -> pa.Array:
    """As json_text, for a column without nulls."""
    kind = column.type
    if not len(column):
        # Lists and maps without rows have one offset, which Java's Arrow may omit: it must not be read.
        return pa.array([], pa.string())
    if pa.types.is_map(kind):
        keys = _children(column, column.keys)
        items = _children(column, column.items)
        pairs = _join(_quoted(_key(keys, text)), ":", _element(items, text))
        return _join("{", _joined(column, pairs), "}")
    if pa.types.is_struct(kind):
        pieces: list[pa.Array | str] = []
        for index, field in enumerate(kind):
            pieces += ["," if index else "{", json.dumps(field.name, ensure_ascii=False) + ":"]
            pieces.append(_element(column.field(index), text))
        return _join(*pieces, "}") if pieces else pa.repeat(pa.scalar("{}"), len(column))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _join("[", _joined(column, _element(_children(column, column.values), text)), "]")
    return _scalars(column, text)


def _children(column: pa.Array, values: pa.Array) -> pa.Array:
    """Return the children of these rows: a slice holds the children of all rows."""
    first, last = column.offsets[0].as_py(), column.offsets[-1].as_py()
    return values.slice(first, last - first)


def _joined(column: pa.Array, texts: pa.Array) -> pa.Array:
    """Join the texts of each row's children with commas."""
    offsets = column.offsets.to_numpy()
    lists = pa.LargeListArray.from_arrays(pa.array((offsets - offsets[0]).astype(np.int64)), texts)
    return pc.binary_join(lists, ",")


def _element(column: pa.Array, text: Text) -> pa.Array:
    return pc.fill_null(json_text(column, text), "null")


def _key(keys: pa.Array, text: Text) -> pa.Array:
    """Return a map's keys as texts that are not quoted yet."""
    if pa.types.is_binary(keys.type) or pa.types.is_large_binary(keys.type):
        return _base64(keys)
    return json_text(keys, text) if pa.types.is_nested(keys.type) else text(keys).cast(pa.string())


def _scalars(column: pa.Array, text: Text) -> pa.Array:
    kind = column.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _join('"', _base64(column), '"')
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _quoted(column.cast(pa.string()))
    if pa.types.is_floating(kind):
        finite = pc.is_finite(column)
        numbers = text(column)
        return numbers if pc.all(finite).as_py() else pc.if_else(finite, numbers, _quoted(_not_finite(column)))
    if pa.types.is_decimal(kind) or pa.types.is_temporal(kind):
        return _join('"', text(column), '"')
    return text(column)


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
