"""Read arrays, structs and maps from JSON text, level by level: the values at one path in all rows are one column.

    array    a JSON array
    struct   an object: fields by name; missing fields are null, others are ignored, the last field of a name is used
    map      an object: its names are texts of the key's type; the last field of a name is used
    scalar   a JSON string, number, true or false; its text is read as a field's text is (text_forms.py):
             1.50 is as exact a decimal as "1.50", and "NaN" is a float
    binary   a JSON string in base64
    any      null is null

A page is read at once if Arrow's reader is certain to return the same, and otherwise row by row. If a row's text is not
JSON, or a part of it does not fit, the row is null.
"""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from spark_streams.base.untyped import Json
from spark_streams.connector.source.rows import text_forms
from spark_streams.connector.wire.entry_page import last_of_each_name
from spark_streams.connector.wire.lines import Index, Mask

LONGEST_QUOTED = 80  # characters or bytes of a value in messages
_MIN_SIZE = 50  # rows; reading fewer one by one is faster than further bisecting
# Objects become tuples of pairs. Numbers become their text, so that no digit is rounded.
_decoder = json.JSONDecoder(object_pairs_hook=tuple, parse_float=str, parse_int=str, parse_constant=str)
_NAMES: dict[bool | str, str] = {True: "true", False: "false"}
_BLANKS = frozenset(" \t\n\r")
_SPACE = re.compile(r"[ \t\n\r]*")
_CLOSING = {"[": "]", "{": "}"}


def is_nested(to: pa.DataType) -> bool:
    """Whether values of this type are written as JSON."""
    return bool(pa.types.is_list(to) or pa.types.is_struct(to) or pa.types.is_map(to))


def read_json(text: pa.Array, to: pa.DataType, null_values: Collection[bytes] = ()) -> tuple[pa.Array, pa.Array | None]:
    """Return the column, and a boolean array of the rows whose text does not fit, or None.

    null_values: texts of parts that are null. Keys of maps are never null.
    """
    raw = None if text_forms.may_be_plain(null_values) else raw_type(to)
    if raw is None:
        return _Reader(len(text), null_values).read(text, to)
    bad: Mask = np.zeros(len(text), np.bool_)
    pieces: list[tuple[pa.Array, Index]] = []
    at_once = partial(_read_at_once, raw=raw, null_values=null_values)
    for accepted, rows in text_forms.bisect_cast(at_once, _MIN_SIZE, text, np.arange(len(text)), to):
        column, unfit = accepted, None
        if accepted is None:
            column, unfit = _Reader(len(rows), null_values).read(text.take(pa.array(rows)), to)
        if unfit is not None:
            bad[rows] = unfit.to_numpy(zero_copy_only=False)
        pieces.append((column, rows))
    return text_forms.assemble(pieces, len(text), to), pa.array(bad) if bad.any() else None


# -- at once -----------------------------------------------------------------------------------------------------------
# Each text T becomes the line `{"v":T}`. Arrow accepts the lines, with one row each, only if each T is one JSON value
# of the declared type:
# - A row cannot extend into the next line. `}` and `{`, the last and the first character of two lines, follow each
#   other only outside of values, and a line end inside a string is refused.
# - A T that closes the object and opens another one adds a row.
# - A T with further members (`1,"w":2`) has an unexpected field, which is refused. If the texts have undeclared fields,
#   unexpected fields must be ignored. Then Arrow must accept `{"v":[T]}`, too: a T with further members is no element
#   of an array.
# Values that Arrow would read differently are left to the reader by rows: numbers for declared texts and texts for
# declared numbers, duplicate fields, maps, binary. Arrow refuses all these. It accepts `Inf` and `-NaN`, so they are
# searched for.


def _read_at_once(text: pa.Array, to: pa.DataType, raw: pa.DataType, null_values: Collection[bytes]) -> pa.Array:
    return _convert(read_lines(text, raw), to, null_values)


def raw_type(to: pa.DataType) -> pa.DataType | None:
    """Return the type with which Arrow reads values of type `to`: text if the sink writes text; None if Arrow cannot
    read them."""
    if pa.types.is_list(to):
        value = raw_type(to.value_type)
        return None if value is None else pa.list_(pa.field(to.value_field.name, value))
    if pa.types.is_struct(to):
        fields = [(field.name, raw_type(field.type)) for field in to]
        is_readable = all(raw is not None for _, raw in fields) and len({name for name, _ in fields}) == len(fields)
        return pa.struct(fields) if is_readable else None
    if pa.types.is_map(to) or pa.types.is_binary(to):
        return None
    is_plain = pa.types.is_boolean(to) or pa.types.is_signed_integer(to) or pa.types.is_floating(to)
    return to if is_plain else pa.string()


def read_lines(text: pa.Array, raw: pa.DataType) -> pa.Array:
    """Return the column. Raises pa.ArrowInvalid unless the texts are certain to be read correctly."""
    text_bytes = text_forms.bytes_of(text).tobytes()
    if b"\0" in text_bytes:
        raise pa.ArrowInvalid("a zero byte")  # Arrow ends a text there
    # Searching for one byte is much faster than for a word, and most texts have neither `I` nor `N`.
    may_have_word = any(word[:1] in text_bytes and word in text_bytes for word in (b"Inf", b"NaN"))
    if may_have_word and pc.any(pc.match_substring_regex(text, r"[\[:,\s-]Inf|-NaN")).as_py():
        raise pa.ArrowInvalid("not JSON")
    text = pc.fill_null(text, "null")
    try:
        return _read(text, raw, '{"v":', "}\n", "error")
    except pa.ArrowInvalid:
        if not _has_fields(raw):
            raise
    column = _read(text, raw, '{"v":', "}\n", "ignore")
    if pc.any(pc.not_equal(pc.list_value_length(_read(text, pa.list_(raw), '{"v":[', "]}\n", "ignore")), 1)).as_py():
        raise pa.ArrowInvalid("more than one value")
    return column


def _has_fields(raw: pa.DataType) -> bool:
    return bool(pa.types.is_struct(raw) or (pa.types.is_list(raw) and _has_fields(raw.value_type)))


def _read(text: pa.Array, raw: pa.DataType, head: str, tail: str, unexpected: str) -> pa.Array:
    lines = pc.binary_join_element_wise(head, text, tail, "")
    data = pa.py_buffer(text_forms.bytes_of(lines))
    table = pyarrow.json.read_json(
        pa.BufferReader(data),
        read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=data.size + 1),
        parse_options=pyarrow.json.ParseOptions(
            explicit_schema=pa.schema([("v", raw)]), unexpected_field_behavior=unexpected
        ),
    )
    if table.num_rows != len(text) or table.schema.names != ["v"] or table.schema.types != [raw]:
        raise pa.ArrowInvalid("not one value a line")
    return table.column(0).combine_chunks()


def _convert(column: pa.Array, to: pa.DataType, null_values: Collection[bytes]) -> pa.Array:
    """Convert a column of the raw type to the declared type. Raises pa.ArrowInvalid if a value does not fit."""
    if pa.types.is_list(to):
        items = _check_nulls(_convert(column.flatten(), to.value_type, null_values), to.value_field)
        sizes = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
        return pa.ListArray.from_arrays(_bounds(sizes, column.is_null().to_numpy(zero_copy_only=False)), items, type=to)
    if pa.types.is_struct(to):
        is_present = column.is_valid()
        parts = []
        for index, field in enumerate(to):
            part = _convert(column.field(index), field.type, null_values)
            _check_nulls(part.filter(is_present) if column.null_count else part, field)
            parts.append(part)
        return pa.StructArray.from_arrays(parts, fields=list(to), mask=pc.invert(is_present))
    if null_values and pa.types.is_string(column.type):
        column = text_forms.nulls_instead(column, null_values)
    if column.type == to:
        return column
    values, unfit = text_forms.cast_texts(column, to)
    if unfit is not None:
        raise pa.ArrowInvalid("a value does not fit")
    return values


def _check_nulls(column: pa.Array, field: pa.Field) -> pa.Array:
    """Return the column. Raises pa.ArrowInvalid if it has a null and the field is not nullable."""
    if column.null_count and not field.nullable:
        raise pa.ArrowInvalid("a null in a field that is not nullable")
    return column


# -- row by row --------------------------------------------------------------------------------------------------------


def members_that_do_not_fit(
    texts: pa.Array, to: pa.DataType, null_values: Collection[bytes] = ()
) -> dict[int, tuple[str, str]]:
    """Return the path and the text, for messages, of the first part of each value that does not fit, by its row. A text
    that is not JSON has none.

    `.qty` is a field of a struct, `[]` an item of an array or a value of a map, `{}` a key of a map; "" is the value
    itself.
    """
    reader = _Reader(len(texts), null_values)
    reader.read(texts, to)
    return reader.members


class _Reader:
    """Reads one column row by row."""

    def __init__(self, rows: int, null_values: Collection[bytes] = ()) -> None:
        self._missing = {text.decode("utf-8", "replace") for text in null_values}
        self._bad: Mask = np.zeros(rows, np.bool_)  # rows that do not fit, found so far
        self.members: dict[int, tuple[str, str]] = {}  # path and text of the first part of each that does not fit

    def read(self, text: pa.Array, to: pa.DataType) -> tuple[pa.Array, pa.Array | None]:
        values: list[Json] = []
        for row, json_text in enumerate(text.to_pylist()):
            try:
                values.append(None if json_text is None else _decode(json_text))
            except ValueError:
                values.append(None)
                self._bad[row] = True
        column = self._column(values, np.arange(len(text)), to)
        if not self._bad.any():
            return column, None
        positions = pa.array(np.arange(len(text)), mask=self._bad)
        return column.take(positions), pa.array(self._bad)

    def _refuse(self, row: int, path: str, value: Json) -> None:
        self._bad[row] = True
        if row not in self.members:
            self.members[row] = path, _shown(value)

    def _column(self, values: list[Json], rows: Index, to: pa.DataType, path: str = "") -> pa.Array:
        """Return the column of the values at one path. rows: row of the page for each value."""
        if pa.types.is_map(to):
            return self._map(values, rows, to, path)
        if pa.types.is_list(to):
            return self._list(values, rows, to, path)
        if pa.types.is_struct(to):
            return self._struct(values, rows, to, path)
        if missing := self._missing:
            texts = [_NAMES.get(value, value) if isinstance(value, str | bool) else None for value in values]
            values = [None if text in missing else value for text, value in zip(texts, values, strict=True)]
        return self._scalars(values, rows, to, path)

    def _require(self, kind: type, values: list[Json], rows: Index, path: str) -> list[Json]:
        """Mark values of another kind as bad, and replace them by null."""
        for index, value in enumerate(values):
            if value is not None and not isinstance(value, kind):
                self._refuse(int(rows[index]), path, value)
                values[index] = None
        return values

    def _part(self, values: list[Json], rows: Index, field: pa.Field, path: str) -> pa.Array:
        return self._without_nulls(self._column(values, rows, field.type, path), rows, field, path)

    def _without_nulls(self, column: pa.Array, rows: Index, field: pa.Field, path: str) -> pa.Array:
        """Return the column. Mark rows with a null as bad if the field is not nullable."""
        if not field.nullable and column.null_count:
            for row in rows[column.is_null().to_numpy(zero_copy_only=False)].tolist():
                self._refuse(row, path, None)
        return column

    def _list(self, values: list[Json], rows: Index, to: pa.DataType, path: str) -> pa.Array:
        values = self._require(list, values, rows, path)
        sizes, offsets = _offsets(values)
        items = [item for value in values if value is not None for item in value]
        column = self._part(items, np.repeat(rows, sizes), to.value_field, f"{path}[]")
        return pa.ListArray.from_arrays(offsets, column, type=to)

    def _map(self, values: list[Json], rows: Index, to: pa.DataType, path: str) -> pa.Array:
        values = self._require(tuple, values, rows, path)
        sizes, _ = _offsets(values)
        owners = np.repeat(np.arange(len(values)), sizes)  # index of the map of each pair
        texts: list[Json] = [key for value in values for key, _ in value or ()]
        of_keys = f"{path}{{}}"
        keys = self._scalars(texts, rows[owners], to.key_type, of_keys)
        keys = self._without_nulls(keys, rows[owners], to.key_field, of_keys)
        if keys.null_count:  # Arrow accepts no null key, not even in a map that becomes null later
            for index in np.unique(owners[keys.is_null().to_numpy(zero_copy_only=False)]).tolist():
                values[index] = None
            return self._map(values, rows, to, path)
        items = [item for value in values for _, item in value or ()]
        offsets = _bounds(sizes, np.zeros(len(values), np.bool_))
        last = last_of_each_name(offsets, keys)
        if last is not None:
            offsets, positions = last
            keys, owners = keys.take(positions), owners[positions.to_numpy()]
            items = [items[position] for position in positions.to_pylist()]
        is_null = np.array([value is None for value in values], np.bool_)
        bounds = pa.array(offsets.to_numpy(), mask=np.append(is_null, False))
        column = self._part(items, rows[owners], to.item_field, f"{path}[]")
        return pa.MapArray.from_arrays(bounds, keys, column, type=to)

    def _struct(self, values: list[Json], rows: Index, to: pa.DataType, path: str) -> pa.Array:
        structs = [None if value is None else dict(value) for value in self._require(tuple, values, rows, path)]
        is_present = np.array([struct is not None for struct in structs], np.bool_)
        present = [struct for struct in structs if struct is not None]
        parts = [
            self._part([struct.get(field.name) for struct in present], rows[is_present], field, f"{path}.{field.name}")
            for field in to
        ]
        if len(present) < len(structs):
            positions = pa.array(np.cumsum(is_present) - 1, mask=~is_present)
            parts = [part.take(positions) for part in parts]
        return pa.StructArray.from_arrays(parts, fields=list(to), mask=pa.array(~is_present))

    def _scalars(self, values: list[Json], rows: Index, to: pa.DataType, path: str) -> pa.Array:
        named = [_NAMES[value] if isinstance(value, bool) else value for value in values]
        texts = self._require(str, named, rows, path)
        if pa.types.is_binary(to):
            return pa.array([self._bytes(text, row, path) for text, row in zip(texts, rows, strict=True)], to)
        column, unfit = text_forms.cast_texts(_strings(texts), to)
        if unfit is not None:
            for index in unfit.to_numpy(zero_copy_only=False).nonzero()[0].tolist():
                self._refuse(int(rows[index]), path, texts[index])
        return column

    def _bytes(self, text: str | None, row: int, path: str) -> bytes | None:
        try:
            return None if text is None else binascii.a2b_base64(text, strict_mode=True)
        except ValueError:
            self._refuse(int(row), path, text)
            return None


def _shown(value: Json) -> str:
    """Return a part for messages: the repr of a scalar's text, and the kind of another value."""
    if value is None:
        return "null"
    if isinstance(value, str):
        return quoted(value)
    return "an array" if isinstance(value, list) else "an object"


def quoted(value: str | bytes) -> str:
    """Return the repr of a value, or of its beginning if it is long."""
    return repr(value) if len(value) <= LONGEST_QUOTED else f"{value[:LONGEST_QUOTED]!r}…"


def _offsets(values: Sequence[Json]) -> tuple[Index, pa.Array]:
    """Return the number of items of each value, and the offsets of a list array, null if the value is null."""
    sizes = np.array([0 if value is None else len(value) for value in values], np.int64)
    return sizes, _bounds(sizes, np.array([value is None for value in values], np.bool_))


def _bounds(sizes: Index, null: Mask) -> pa.Array:
    bounds = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=bounds[1:])
    return pa.array(bounds, mask=np.append(null, False))


def _strings(texts: list[str | None]) -> pa.Array:
    try:
        return pa.array(texts, pa.string())
    except UnicodeEncodeError:  # half of a surrogate pair: valid in JSON, but not in UTF-8
        encoded = [None if text is None else text.encode("utf-16", "surrogatepass") for text in texts]
        return pa.array([None if text is None else text.decode("utf-16", "replace") for text in encoded], pa.string())


# -- any depth ---------------------------------------------------------------------------------------------------------
# Python's own reader is much faster, and fails at a depth that depends on its caller and version. Arrow's does not.


def _decode(text: str) -> Json:
    """Return a value of any depth. Raises ValueError."""
    try:
        value: Json = _decoder.decode(text)
        return value
    except RecursionError:
        return decode_deep(text, _decoder.raw_decode)


def decode_deep(text: str, decode_at: Callable[[str, int], tuple[Json, int]]) -> Json:
    """Return the value: objects as tuples of pairs, arrays as lists. decode_at: json.JSONDecoder.raw_decode, for values
    that are not nested. Raises ValueError."""
    unclosed: list[tuple[str, list[Json]]] = []  # bracket, and the values so far
    names: list[str] = []  # of the fields whose values are not complete
    place = _skip_space(text, 0)
    while True:
        value: Any
        bracket = text[place : place + 1]
        if bracket in _CLOSING:
            inner = _skip_space(text, place + 1)
            if text[inner : inner + 1] != _CLOSING[bracket]:
                unclosed.append((bracket, []))
                place = inner if bracket == "[" else _read_name(text, inner, names, decode_at)
                continue
            value, place = [] if bracket == "[" else (), inner + 1
        else:
            value, place = decode_at(text, place)
        while True:
            place = _skip_space(text, place)
            if not unclosed:
                if place < len(text):
                    raise ValueError("more than one value")
                return value
            bracket, values = unclosed[-1]
            values.append(value if bracket == "[" else (names.pop(), value))
            mark = text[place : place + 1]
            place = _skip_space(text, place + 1)
            if mark == ",":
                place = place if bracket == "[" else _read_name(text, place, names, decode_at)
                break
            if mark != _CLOSING[bracket]:
                raise ValueError("no comma")
            unclosed.pop()
            value = values if bracket == "[" else tuple(values)


def _read_name(text: str, place: int, names: list[str], decode_at: Callable[[str, int], tuple[Json, int]]) -> int:
    """Add the name of a field; return the place of its value."""
    if text[place : place + 1] != '"':
        raise ValueError("no name")
    name, place = decode_at(text, place)
    place = _skip_space(text, place)
    if text[place : place + 1] != ":":
        raise ValueError("no colon")
    names.append(name)
    return _skip_space(text, place + 1)


def _skip_space(text: str, place: int) -> int:
    if text[place : place + 1] not in _BLANKS:
        return place
    return _SPACE.match(text, place).end()  # type: ignore[union-attr]  # it matches nothing, too
