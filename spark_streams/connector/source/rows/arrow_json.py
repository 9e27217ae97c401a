"""Read a column of JSON texts with Arrow's reader, if its result is certain to equal that of nested_json.py.

Each text T becomes the line `{"v":T}`. Arrow accepts the lines, with one row each, only if each T is one JSON value of
the declared type:

- A row cannot extend into the next line. `}` and `{`, the last and the first character of two lines, follow each other
  only outside of values, and a line end inside a string is refused.
- A T that closes the object and opens another one adds a row.
- A T with further members (`1,"w":2`) has an unexpected field, which is refused. If the texts have undeclared fields,
  unexpected fields must be ignored. Then Arrow must accept `{"v":[T]}`, too: a T with further members is no element of
  an array.

Values that Arrow would read differently are left to nested_json.py: numbers for declared texts and texts for declared
numbers, duplicate fields, maps, binary. Arrow refuses all these. It accepts `Inf` and `-NaN`, so they are searched for.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from spark_streams.connector.source.rows.text_forms import bytes_of


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
    text_bytes = bytes_of(text).tobytes()
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
    data = pa.py_buffer(bytes_of(lines))
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
