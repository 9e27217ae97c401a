"""Cast field values (binary columns) to the declared Arrow types, whole columns at a time.

Arrow casts a column at once if all texts have the usual form. If Arrow refuses, the texts are grouped by the forms of
the type (text_forms.py), and each group is cast at once. A group that Arrow refuses (a 30th of February) is bisected
until the value is alone. So a bad value takes a few more casts, not one per row. Arrays, structs and maps are read from
JSON (nested_json.py). Pure: Arrow in, Arrow out.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.connector.errors import SchemaError
from spark_streams.connector.source.rows.bisect_cast import assemble, bisect_cast
from spark_streams.connector.source.rows.nested_json import is_nested, members_that_do_not_fit, read_json
from spark_streams.connector.source.rows.text_forms import ScalarKind, bytes_of, nulls_instead, scalar_kind
from spark_streams.connector.wire.entries.lines import Index

_EMPTY = (b"",)
_SMALL = 1000  # texts; validating the UTF-8 of fewer takes less time than a search for bytes that are not ASCII


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
        return read_json(nulls_instead(_decode(present), _EMPTY), to, cast_texts, null_values)
    return cast_texts(_decode(present), to)


def members_of(values: pa.Array, to: pa.DataType, null_values: Collection[bytes] = ()) -> dict[int, tuple[str, str]]:
    """Return the path and the text, for messages, of the first part of each JSON value that does not fit, by its
    row. A value that is not JSON has none."""
    return members_that_do_not_fit(_decode(values), to, cast_texts, null_values)


def cast_texts(text: pa.Array, to: pa.DataType) -> tuple[pa.Array, pa.Array | None]:
    """Cast a string column; see cast_values."""
    if pa.types.is_string(to):
        return text, None
    if is_nested(to):
        return read_json(nulls_instead(text, _EMPTY), to, cast_texts)
    kind = scalar_kind(to)
    assert kind is not None, f"check_castable refuses {to}"
    try:
        return _directly(kind, text, to), None
    except pa.ArrowInvalid:
        text = nulls_instead(text, _EMPTY)
    try:
        return _directly(kind, text, to), None
    except pa.ArrowInvalid:
        column = _cast_by_form(kind, pc.utf8_trim_whitespace(text), to)
    unfit = pc.and_(column.is_null(), text.is_valid())
    return column, unfit if pc.any(unfit).as_py() else None


def _directly(kind: ScalarKind, text: pa.Array, to: pa.DataType) -> pa.Array:
    """Cast texts of the usual form. Raises pa.ArrowInvalid."""
    return pa.nulls(len(text), to) if text.null_count == len(text) else kind.direct_cast(text, to)


def _decode(values: pa.Array) -> pa.Array:
    """Return values as text; bytes that are not UTF-8 become U+FFFD."""
    text = values.view(pa.string())
    if len(text) > _SMALL and np.frombuffer(bytes_of(text), np.uint8).max(initial=0) < 0x80:
        return text  # ASCII
    try:
        text.validate(full=True)
        return text
    except pa.ArrowInvalid:
        pieces = bisect_cast(_decode_all, _decode_each, 50, values, np.arange(len(values)), pa.string())
        return assemble(list(pieces), len(values), pa.string())


def _decode_all(values: pa.Array, to: pa.DataType) -> pa.Array:
    return values.cast(to)


def _decode_each(values: pa.Array, to: pa.DataType) -> pa.Array:
    return pa.array([None if value is None else value.decode("utf-8", "replace") for value in values.to_pylist()], to)


def _cast_by_form(kind: ScalarKind, text: pa.Array, to: pa.DataType) -> pa.Array:
    """Cast each text by the first form that it has; null if it has no form or does not fit."""
    remaining = text.is_valid().to_numpy(zero_copy_only=False)
    pieces: list[tuple[pa.Array, Index]] = []
    for form in kind.forms:
        has_form = pc.fill_null(pc.match_substring_regex(text, form.pattern), False).to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(has_form & remaining)
        if len(rows):
            remaining[rows] = False
            pieces += bisect_cast(form.cast, _null, 1, text.take(pa.array(rows)), rows, to)
        if not remaining.any():
            break
    return assemble(pieces, len(text), to)


def _null(_value: pa.Array, to: pa.DataType) -> pa.Array:
    return pa.nulls(1, to)
