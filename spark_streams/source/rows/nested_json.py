"""Arrays, structs and maps from JSON text, level by level: what is in all rows at one place is one column.

    array    a JSON array
    struct   an object: fields by name; absent ones are null, others are passed over, the last of a name counts
    map      an object: its names are texts of the key's type
    others   a JSON string, number, true or false, of which the text counts, read as a field's text is (text_forms.py):
             1.50 is as exact a decimal as "1.50", and "NaN" is a float
    binary   a JSON string in base64
    any      null is null

A page is read at once where Arrow's own reader is certain to read the same (arrow_json.py), and row by row where not.
A row whose text is no JSON, or has anything that does not fit, is null as a whole. The sink writes so
(sink/encode/fields.py).
"""

from __future__ import annotations

import binascii
import json
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.model.untyped import Json
from spark_streams.source.rows.arrow_json import raw_type, read_lines
from spark_streams.source.rows.bisect_cast import assemble, halved
from spark_streams.wire.entries.lines import Index, Mask

_FEW = 50  # rows that are sooner read one by one than halved further
CastTexts = Callable[[pa.Array, pa.DataType], tuple[pa.Array, pa.Array | None]]

# Objects become tuples of pairs, and numbers their text: the source's digits, nothing rounded.
_decode = json.JSONDecoder(object_pairs_hook=tuple, parse_float=str, parse_int=str, parse_constant=str).decode


def is_nested(to: pa.DataType) -> bool:
    """Whether values of this type are written as JSON."""
    return bool(pa.types.is_list(to) or pa.types.is_struct(to) or pa.types.is_map(to))


def read_json(text: pa.Array, to: pa.DataType, cast: CastTexts) -> tuple[pa.Array, pa.Array | None]:
    """(the column, a boolean array of the rows whose text does not fit, or None). cast: of a column of texts."""
    raw = raw_type(to)
    if raw is None:
        return _Reader(len(text), cast).read(text, to)
    bad: Mask = np.zeros(len(text), np.bool_)
    pieces: list[tuple[pa.Array, Index]] = []

    def at_once(part: pa.Array, to: pa.DataType) -> pa.Array:
        return _converted(read_lines(part, raw), to, cast)

    def one_by_one(part: pa.Array, to: pa.DataType) -> pa.Array:
        column, unfit = _Reader(len(part), cast).read(part, to)
        unfits.append(unfit)
        return column

    unfits: list[pa.Array | None] = []
    for column, rows in halved(at_once, one_by_one, _FEW, text, np.arange(len(text)), to):
        pieces.append((column, rows))
        if unfits and (unfit := unfits.pop()) is not None:
            bad[rows] = unfit.to_numpy(zero_copy_only=False)
    return assemble(pieces, len(text), to), pa.array(bad) if bad.any() else None


def _converted(column: pa.Array, to: pa.DataType, cast: CastTexts) -> pa.Array:
    """A column of the raw type as the declared one. Raises pa.ArrowInvalid where a value does not fit."""
    if pa.types.is_list(to):
        items = _required(_converted(column.flatten(), to.value_type, cast), to.value_field)
        sizes = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
        return pa.ListArray.from_arrays(_bounds(sizes, column.is_null().to_numpy(zero_copy_only=False)), items, type=to)
    if pa.types.is_struct(to):
        present = column.is_valid()
        parts = []
        for index, field in enumerate(to):
            part = _converted(column.field(index), field.type, cast)
            _required(part.filter(present) if column.null_count else part, field)
            parts.append(part)
        return pa.StructArray.from_arrays(parts, fields=list(to), mask=pc.invert(present))
    if column.type == to:
        return column
    values, unfit = cast(column, to)
    if unfit is not None:
        raise pa.ArrowInvalid("a value does not fit")
    return values


def _required(column: pa.Array, field: pa.Field) -> pa.Array:
    """The column; raises pa.ArrowInvalid for a null where none may be."""
    if column.null_count and not field.nullable:
        raise pa.ArrowInvalid("a null where none may be")
    return column


class _Reader:
    """Reads one column. bad: rows that do not fit, as far as it is known."""

    def __init__(self, rows: int, cast: CastTexts) -> None:
        self._cast = cast
        self._bad: Mask = np.zeros(rows, np.bool_)

    def read(self, text: pa.Array, to: pa.DataType) -> tuple[pa.Array, pa.Array | None]:
        values: list[Json] = []
        for row, json_text in enumerate(text.to_pylist()):
            try:
                values.append(None if json_text is None else _decode(json_text))
            except (ValueError, RecursionError):
                values.append(None)
                self._bad[row] = True
        column = self._column(values, np.arange(len(text)), to)
        if not self._bad.any():
            return column, None
        kept = pa.array(np.arange(len(text)), mask=self._bad)
        return column.take(kept), pa.array(self._bad)

    def _column(self, values: list[Json], rows: Index, to: pa.DataType) -> pa.Array:
        """values: what is at one place, row by row; rows: which row of the whole each belongs to."""
        if pa.types.is_map(to):
            return self._map(values, rows, to)
        if pa.types.is_list(to):
            return self._list(values, rows, to)
        if pa.types.is_struct(to):
            return self._struct(values, rows, to)
        return self._leaves(values, rows, to)

    def _only(self, kind: type, values: list[Json], rows: Index) -> list[Json]:
        """Values of another kind are bad, and null from here on."""
        for index, value in enumerate(values):
            if value is not None and not isinstance(value, kind):
                self._bad[rows[index]] = True
                values[index] = None
        return values

    def _part(self, values: list[Json], rows: Index, field: pa.Field) -> pa.Array:
        column = self._column(values, rows, field.type)
        if not field.nullable and column.null_count:
            self._bad[rows[column.is_null().to_numpy(zero_copy_only=False)]] = True
        return column

    def _list(self, values: list[Json], rows: Index, to: pa.DataType) -> pa.Array:
        values = self._only(list, values, rows)
        sizes, offsets = _offsets(values)
        items = [item for value in values if value is not None for item in value]
        return pa.ListArray.from_arrays(offsets, self._part(items, np.repeat(rows, sizes), to.value_field), type=to)

    def _map(self, values: list[Json], rows: Index, to: pa.DataType) -> pa.Array:
        values = self._only(tuple, values, rows)
        sizes, _ = _offsets(values)
        of_pair = np.repeat(np.arange(len(values)), sizes)
        keys = self._part([key for value in values for key, _ in value or ()], rows[of_pair], to.key_field)
        if keys.null_count:  # no map may have such a key, not even one that will be null in the end
            for index in np.unique(of_pair[keys.is_null().to_numpy(zero_copy_only=False)]).tolist():
                values[index] = None
            return self._map(values, rows, to)
        items = self._part([item for value in values for _, item in value or ()], rows[of_pair], to.item_field)
        return pa.MapArray.from_arrays(_offsets(values)[1], keys, items, type=to)

    def _struct(self, values: list[Json], rows: Index, to: pa.DataType) -> pa.Array:
        values = [None if value is None else dict(value) for value in self._only(tuple, values, rows)]
        present = np.array([value is not None for value in values], np.bool_)
        there = [value for value in values if value is not None]
        parts = [self._part([value.get(field.name) for value in there], rows[present], field) for field in to]
        if len(there) < len(values):
            place = pa.array(np.cumsum(present) - 1, mask=~present)
            parts = [part.take(place) for part in parts]
        return pa.StructArray.from_arrays(parts, fields=list(to), mask=pa.array(~present))

    def _leaves(self, values: list[Json], rows: Index, to: pa.DataType) -> pa.Array:
        texts = self._only(str, [_NAMES[v] if isinstance(v, bool) else v for v in values], rows)
        if pa.types.is_binary(to):
            return pa.array([self._bytes(text, row) for text, row in zip(texts, rows, strict=True)], to)
        column, unfit = self._cast(_strings(texts), to)
        if unfit is not None:
            self._bad[rows[unfit.to_numpy(zero_copy_only=False)]] = True
        return column

    def _bytes(self, text: str | None, row: int) -> bytes | None:
        try:
            return None if text is None else binascii.a2b_base64(text, strict_mode=True)
        except ValueError:
            self._bad[row] = True
            return None


_NAMES = {True: "true", False: "false"}


def _offsets(values: Sequence[Json]) -> tuple[Index, pa.Array]:
    """(how many items each value has, the offsets of a list array; null where a value is)."""
    sizes = np.array([0 if value is None else len(value) for value in values], np.int64)
    return sizes, _bounds(sizes, np.array([value is None for value in values], np.bool_))


def _bounds(sizes: Index, null: Mask) -> pa.Array:
    bounds = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=bounds[1:])
    return pa.array(bounds, mask=np.append(null, False))


def _strings(texts: list[str | None]) -> pa.Array:
    try:
        return pa.array(texts, pa.string())
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON may spell and UTF-8 has not
        whole = [None if text is None else text.encode("utf-16", "surrogatepass") for text in texts]
        return pa.array([None if text is None else text.decode("utf-16", "replace") for text in whole], pa.string())
