"""JSON texts to columns by Arrow's reader, all at once, where that is certain to be what nested_json.py reads.

Each text T becomes the line `{"v":T}`. Arrow accepts the lines, one row for each, only if each T is one JSON value of
the declared shape, because

- a row cannot reach into the next line: what a line ends and the next begins with, `}` and `{`, follow each other only
  outside of all values, and a line end inside a string is refused;
- a T that closes the object and opens another makes more rows than there are texts;
- a T with further members (`1,"w":2`) has an unexpected field, which is refused. Where the texts themselves have
  fields that are not declared, these must be let pass, and then `{"v":[T]}` must be accepted as well: no T with further
  members is an element of an array.

What Arrow would read otherwise than nested_json.py is left to it: numbers where texts are declared or the other way
round, the same field twice, maps, binary. Arrow refuses these; `Inf` and `-NaN`, which it takes for JSON, are sought.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from spark_streams.source.rows.text_forms import bytes_of


def raw_type(to: pa.DataType) -> pa.DataType | None:
    """The type to read this one as: texts where the sink writes texts. None where Arrow cannot read it."""
    if pa.types.is_list(to):
        value = raw_type(to.value_type)
        return None if value is None else pa.list_(pa.field(to.value_field.name, value))
    if pa.types.is_struct(to):
        parts = [(field.name, raw_type(field.type)) for field in to]
        known = all(part is not None for _, part in parts) and len({name for name, _ in parts}) == len(parts)
        return pa.struct(parts) if known else None
    if pa.types.is_map(to) or pa.types.is_binary(to):
        return None
    plain = pa.types.is_boolean(to) or pa.types.is_signed_integer(to) or pa.types.is_floating(to)
    return to if plain else pa.string()


def read_lines(text: pa.Array, raw: pa.DataType) -> pa.Array:
    """The column. Raises pa.ArrowInvalid where the texts are not certain to be read rightly."""
    if b"\0" in bytes_of(text).tobytes():
        raise pa.ArrowInvalid("a zero byte")  # Arrow stops there
    suspect = any(pc.any(pc.match_substring(text, word)).as_py() for word in ("Inf", "-NaN"))
    if suspect and pc.any(pc.match_substring_regex(text, r"[\[:,\s-]Inf|-NaN")).as_py():
        raise pa.ArrowInvalid("no JSON")
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
