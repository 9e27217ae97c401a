"""Field values (binary columns) to the declared Arrow types, whole columns at a time.

A column that is all of the usual form is cast by Arrow at once. Where Arrow refuses, the column is sorted by the forms
that a text of the type may have (text_forms.py), and each form is cast at once; a form's column that Arrow refuses (a
30th of February) is halved until the value is alone. So one bad value costs a few more casts, and not one per row.
Arrays, structs and maps are read from JSON (nested_json.py). Pure: Arrow in, Arrow out.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.errors import SchemaError
from spark_streams.source.rows.bisect_cast import assemble, halved
from spark_streams.source.rows.nested_json import is_nested, read_json
from spark_streams.source.rows.text_forms import Kind, kind_of
from spark_streams.wire.entries.lines import Index

_FEW = 1000  # values whose bytes are looked at sooner than Arrow has set a cast up, 5 µs


def check_castable(schema: pa.Schema, skip: frozenset[str]) -> None:
    """Raises SchemaError for a declared type that values cannot be cast to."""
    for field in schema:
        if field.name not in skip and (wrong := _unreadable(field)) is not None:
            raise SchemaError(
                f"column {field.name!r} is declared {wrong}: fields are read as string, binary, boolean, integer, "
                "float, decimal, date, timestamp or time, or from JSON as arrays, structs and maps of these; declare "
                "it STRING and use parse_json, from_json or a cast"
            )


def _unreadable(field: pa.Field) -> str | None:
    """What in this declaration cannot be read."""
    to = field.type
    if pa.types.is_struct(to) and any(part.metadata and b"variant" in part.metadata for part in to):
        return "VARIANT"
    if pa.types.is_struct(to) and any(part.metadata and b"srid" in part.metadata for part in to):
        return "GEOMETRY or GEOGRAPHY"
    if pa.types.is_map(to) and is_nested(to.key_type):
        return f"{to}, a map whose keys are not scalars"
    if is_nested(to) and to.num_fields:
        parts = [to.field(index) for index in range(to.num_fields)]
        return next((wrong for part in parts if (wrong := _unreadable(part)) is not None), None)
    known = pa.types.is_string(to) or pa.types.is_binary(to) or kind_of(to) is not None
    return None if known else str(to)


def cast_values(values: pa.Array, to: pa.DataType) -> tuple[pa.Array, pa.Array | None]:
    """(the column, a boolean array of the rows whose value does not fit, or None where all fit).

    values: binary with nulls. A value that does not fit is null in the column. Text is UTF-8; in a STRING column bytes
    that are not UTF-8 become U+FFFD, which counts as fitting.
    """
    if pa.types.is_binary(to):
        return values, None
    return cast_texts(_texts(values), to)


def cast_texts(text: pa.Array, to: pa.DataType) -> tuple[pa.Array, pa.Array | None]:
    """As cast_values, of a string column."""
    if pa.types.is_string(to):
        return text, None
    if text.null_count == len(text):
        return pa.nulls(len(text), to), None
    if is_nested(to):
        return read_json(text, to, cast_texts)
    kind = kind_of(to)
    assert kind is not None, f"check_castable lets no {to} pass"
    try:
        return kind.direct(text, to), None
    except pa.ArrowInvalid:
        column = _by_form(kind, pc.utf8_trim_whitespace(text), to)
    unfit = pc.and_(column.is_null(), text.is_valid())
    return column, unfit if pc.any(unfit).as_py() else None


def _texts(values: pa.Array) -> pa.Array:
    """As text; bytes that are not UTF-8 become U+FFFD."""
    try:
        if len(values) > _FEW:
            return values.cast(pa.string())
        text = values.view(pa.string())
        text.validate(full=True)
        return text
    except pa.ArrowInvalid:
        pieces = halved(_utf8, _not_utf8, 50, values, np.arange(len(values)), pa.string())
        return assemble(list(pieces), len(values), pa.string())


def _utf8(values: pa.Array, to: pa.DataType) -> pa.Array:
    return values.cast(to)


def _not_utf8(values: pa.Array, to: pa.DataType) -> pa.Array:
    return pa.array([None if value is None else value.decode("utf-8", "replace") for value in values.to_pylist()], to)


def _by_form(kind: Kind, text: pa.Array, to: pa.DataType) -> pa.Array:
    """Each text cast as the first form that it has; null where it has none or does not fit."""
    left = text.is_valid().to_numpy(zero_copy_only=False)
    pieces: list[tuple[pa.Array, Index]] = []
    for form in kind.forms:
        of_form = pc.fill_null(pc.match_substring_regex(text, form.pattern), False).to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(of_form & left)
        if len(rows):
            left[rows] = False
            pieces += halved(form.cast, _nothing, 1, text.take(pa.array(rows)), rows, to)
        if not left.any():
            break
    return assemble(pieces, len(text), to)


def _nothing(_value: pa.Array, to: pa.DataType) -> pa.Array:
    return pa.nulls(1, to)
