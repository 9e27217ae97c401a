"""What fastavro wrote passes the walk. Bytes that are no value of their schema have a reason before it reads them."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from datetime import date
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_streams.connector.schemas.avro import AvroReader, parsed
from spark_streams.connector.schemas.avro_walk import AvroWalk
from spark_streams.connector.schemas.decoder import Decoder
from spark_streams.connector.schemas.reasons import DEEPEST, UnreadableError
from spark_streams.connector.schemas.schema_registry import Schema
from tests.connector.schemas.avro_values import encoded, form, record

COLORS = {"type": "enum", "name": "Color", "symbols": ["RED", "BLUE"]}
MANY = {"type": "enum", "name": "Many", "symbols": [f"S{number}" for number in range(100)]}
INTS, NULLS = {"type": "array", "items": "int"}, {"type": "array", "items": "null"}
NO_BYTES = {"type": "fixed", "name": "No", "size": 0}
TWINS = record({"name": "a", "type": "null"}, {"name": "b", "type": NO_BYTES}, name="T")
NODE = record({"name": "next", "type": ["null", "Node"]}, name="Node")
TREE = record({"name": "inner", "type": {"type": "array", "items": "Tree"}}, name="Tree")
NAMES = record({"name": "inner", "type": {"type": "map", "values": "Names"}}, name="Names")
ENDLESS = record({"name": "a", "type": "Endless"}, {"name": "b", "type": "Endless"}, name="Endless")


def number(value: int) -> bytes:
    """Return a varint, of any size."""
    rest, more = (value << 1 if value >= 0 else (-value << 1) - 1), []
    while rest > 0x7F:
        more.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*more, rest])


def reason_of(schema: Any, body: bytes) -> str:
    try:
        Decoder(form(schema)).decode(body)
    except UnreadableError as error:
        return error.reason
    return ""


def field(kind: Any) -> Any:
    return record({"name": "x", "type": kind})


def doubling(levels: int) -> Any:
    """Return a record without bytes that has 2 to the power of `levels` records."""
    kind: Any = record(name="D0")
    for level in range(1, levels + 1):
        kind = record({"name": "a", "type": kind}, {"name": "b", "type": f"D{level - 1}"}, name=f"D{level}")
    return kind


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("boolean", b"\2"),
        ("boolean", b"\xff"),
        ("boolean", b""),
        ("int", number(2**31)),
        ("int", number(-(2**31) - 1)),
        ("int", number(2**40)),
        ("int", b"\x80" * 5 + b"\0"),
        ("long", number(2**63)),
        ("long", number(-(2**63) - 1)),
        ("long", number(2**64)),
        ("long", b"\xff" * 9 + b"\2"),
        ("long", b"\x80" * 10 + b"\0"),
        ("long", b"\x80"),
        ("float", b"\0" * 3),
        ("double", b"\0" * 7),
        ("string", number(-1)),
        ("string", number(-(2**63))),
        ("string", number(2**62) + b"a"),
        ("string", number(2) + b"a"),
        ("string", b"\2\xff"),
        ("string", b"\x06\xed\xa0\x80"),  # half of a surrogate pair
        ("bytes", number(-2) + b"ab"),
        ("bytes", number(2**63 - 1)),
        ({"type": "fixed", "name": "F", "size": 4}, b"abc"),
        (COLORS, number(-1)),
        (COLORS, number(-2)),
        (COLORS, number(2)),
        (COLORS, number(2**32)),
        (MANY, number(-1)),
        (MANY, number(100)),
        (MANY, number(2**32)),
        (["null", "int"], number(-1) + b"\2"),
        (["null", "int"], number(-2)),
        (["null", "int"], number(2)),
        (["null", "int"], number(2**32)),
        (["null", "boolean"], b"\2\2"),
        (INTS, number(2) + b"\2\0"),
        (INTS, number(-1) + number(2) + b"\2\0"),  # the block has one byte
        (INTS, number(-1) + number(0) + b"\2\0"),
        (INTS, number(-1) + number(-1) + b"\2\0"),
        (INTS, number(-1) + number(2**62) + b"\2\0"),
        (INTS, number(-(2**63)) + number(1) + b"\2\0"),
        (INTS, number(2**63 - 1) + b"\2\0"),
        (INTS, number(1) + b"\2"),
        (NULLS, number(10_000_000) + b"\0"),
        (NULLS, number(-10_000_000) + b"\0\0"),
        (NULLS, number(2**63 - 1) + b"\0"),
        (NULLS, (number(100) * 10_000) + b"\0"),
        ({"type": "array", "items": TWINS}, number(10_000_000) + b"\0"),
        ({"type": "array", "items": record(name="Empty")}, number(10_000_000) + b"\0"),
        ({"type": "array", "items": NO_BYTES}, number(10_000_000) + b"\0"),
        ({"type": "array", "items": doubling(20)}, number(1) + b"\0"),
        (doubling(30), b""),
        ({"type": "map", "values": "null"}, number(-1) + number(9) + b"\2a\0"),
        ({"type": "map", "values": "int"}, number(1) + number(-1) + b"\2\0"),
        ({"type": "map", "values": "int"}, number(10_000_000)),
        ({"type": "bytes", "logicalType": "decimal", "precision": 38}, number(100_000) + b"\1" * 100_000),
        (
            {"type": "fixed", "name": "F", "size": 100_000, "logicalType": "decimal", "precision": 38},
            b"\1" * 100_000,
        ),
        ({"type": "int", "logicalType": "date"}, number(-719_163)),
        ({"type": "int", "logicalType": "date"}, number(2_932_897)),
        ({"type": "int", "logicalType": "date"}, number(2**31 - 1)),
        ({"type": "long", "logicalType": "timestamp-millis"}, number(-62_135_596_800_001)),
        ({"type": "long", "logicalType": "timestamp-millis"}, number(2**63 - 1)),
        ({"type": "long", "logicalType": "timestamp-micros"}, number(253_402_300_800_000_000)),
        ({"type": "long", "logicalType": "timestamp-micros"}, number(-(2**63))),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, number(253_402_300_800_000)),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, number(2**63 - 1)),
    ],
)  # fmt: skip
def test_bytes_that_are_no_value_are_a_reason_at_once(kind: Any, body: bytes) -> None:
    begun = time.process_time()
    assert reason_of(field(kind), body) == "bad-value"
    assert time.process_time() - begun < 0.5


@pytest.mark.parametrize(
    ("kind", "body", "value"),
    [
        ("int", b"\x82\x80\x80\x80\0", 1),  # written longer than need be
        ("int", number(-(2**31)), -(2**31)),
        ("long", number(2**63 - 1), 2**63 - 1),
        ("long", number(-(2**63)), -(2**63)),
        (COLORS, b"\x82\0", "BLUE"),
        (MANY, number(99), "S99"),
        (["null", "int"], b"\x82\0\2", 1),
        (INTS, number(-2) + number(3) + b"\2\x80\1" + number(1) + b"\4\0", [1, 64, 2]),
        ({"type": "map", "values": "int"}, number(-1) + number(3) + b"\2a\2\0", {"a": 1}),
        (NULLS, number(5_000) + b"\0", [None] * 5_000),
        ("string", number(200) + b"a" * 200, "a" * 200),
        ({"type": "int", "logicalType": "date"}, number(0), date(1970, 1, 1)),
    ],
)
def test_what_the_specification_allows_is_read(kind: Any, body: bytes, value: object) -> None:
    assert Decoder(form(field(kind))).decode(body) == {"x": value}


def test_what_a_reader_adds_to_records_counts_as_items_without_bytes() -> None:
    """40 kB would become 40,000 records of a thousand fields."""
    small = record({"name": "a", "type": "boolean"}, name="Small")
    more = [{"name": f"f{index}", "type": "int", "default": 0} for index in range(1_000)]
    large = record({"name": "a", "type": "boolean"}, *more, name="Small")
    reader = AvroReader(Schema(json.dumps(field({"type": "array", "items": large}))))
    writer = field({"type": "array", "items": small})
    read = reader.reading(Schema(json.dumps(writer)), ())
    assert len(read(encoded(writer, {"x": [{"a": True}] * 3}))["x"][2]) == 1_001
    with pytest.raises(UnreadableError, match="bad-value"):
        read(encoded(writer, {"x": [{"a": True}] * 40_000}))


def test_a_value_as_its_own_schema_is_not_resolved() -> None:
    """By the reader's union a text would become bytes, and a whole number a float."""
    schema = field({"type": "array", "items": ["bytes", "string", "double", "int"]})
    assert Decoder(form(schema)).decode(encoded(schema, {"x": ["a", 1]})) == {"x": ["a", 1]}


def deepest(schema: Any, levels: int) -> bytes:
    """Return a value of so many records within each other."""
    if schema is NODE:
        return b"\2" * (levels - 1) + b"\0"
    if schema is TREE:
        return b"\2" * (levels - 1) + b"\0" * levels
    return b"\2\2k" * (levels - 1) + b"\0" * levels


@pytest.mark.parametrize(("schema", "levels"), [(NODE, DEEPEST), (TREE, DEEPEST // 2), (NAMES, DEEPEST // 2)])
def test_levels_are_bounded(schema: Any, levels: int) -> None:
    """Records, arrays and maps count."""
    assert reason_of(schema, deepest(schema, levels)) == ""
    assert reason_of(schema, deepest(schema, levels + 1)) == "bad-value"


def test_a_record_that_never_ends_is_a_reason() -> None:
    assert reason_of(ENDLESS, b"") == "bad-value"


_READS_DEEP = """
import json, sys
from spark_streams.connector.schemas.avro import AvroReader
from spark_streams.connector.schemas.reasons import UnreadableError
from spark_streams.connector.schemas.schema_registry import Schema
writer, reader, body = json.loads(sys.stdin.read())
read = AvroReader(Schema(json.dumps(reader)) if reader else None).reading(Schema(json.dumps(writer)), ())
try:
    print(read(bytes.fromhex(body)))
except UnreadableError as error:
    print(error.reason)
"""


@pytest.mark.parametrize("size", [10_000, 20_000, 100_000])
@pytest.mark.parametrize("reader", ["none", "the same", "skips it"])
@pytest.mark.parametrize("schema", [NODE, TREE, NAMES], ids=["union", "array", "map"])
def test_a_deep_value_does_not_end_the_process(schema: Any, reader: str, size: int) -> None:
    """In a process of its own: fastavro ends it by SIGSEGV."""
    writer = record({"name": "a", "type": "int"}, {"name": "skipped", "type": schema})
    readers = {"none": None, "the same": writer, "skips it": record({"name": "a", "type": "int"})}
    body = b"\2" + deepest(schema, size // (4 if schema is NAMES else 2 if schema is TREE else 1))
    given = json.dumps([writer, readers[reader], body.hex()])
    ran = subprocess.run([sys.executable, "-c", _READS_DEEP], input=given, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "bad-value\n"), ran.stderr


_SIMPLE = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "string": st.text(max_size=200),
    "bytes": st.binary(max_size=200),
}
Typed = tuple[Any, st.SearchStrategy[Any]]  # a schema and its values


@st.composite
def typed(draw: st.DrawFn, levels: int = 3, in_union: bool = False) -> Typed:
    kinds = [*_SIMPLE, "fixed", "enum", *(["array", "map", "record", "node"] if levels else [])]
    kind = draw(st.sampled_from(kinds if in_union or not levels else [*kinds, "union"]))
    name = f"N{draw(st.uuids()).hex}"
    if kind in _SIMPLE:
        return kind, _SIMPLE[kind]
    if kind == "fixed":
        size = draw(st.integers(0, 20))
        return {"type": kind, "name": name, "size": size}, st.binary(min_size=size, max_size=size)
    if kind == "enum":
        symbols = [f"S{index}" for index in range(draw(st.sampled_from([1, 2, 63, 64, 65, 130])))]
        return {"type": kind, "name": name, "symbols": symbols}, st.sampled_from(symbols)
    if kind == "union":
        branches = draw(st.lists(typed(levels - 1, True), min_size=1, max_size=4, unique_by=lambda one: _name(one[0])))
        values = [
            made if one == "null" else st.tuples(st.just(_name(one)), made)  # fastavro is told the branch
            for one, made in branches
        ]
        return [one for one, _ in branches], st.one_of(values)
    if kind == "node":  # it contains itself
        inner, values = draw(typed(0))
        node = {"type": "record", "name": name, "fields": [
            {"name": "v", "type": inner}, {"name": "next", "type": ["null", name]},
        ]}  # fmt: skip
        return node, st.lists(values, min_size=1, max_size=5).map(_chain)
    if kind == "record":
        parts = draw(st.lists(typed(levels - 1), max_size=5))
        fields = [{"name": f"f{index}", "type": one} for index, (one, _) in enumerate(parts)]
        made = st.fixed_dictionaries({f"f{index}": values for index, (_, values) in enumerate(parts)})
        return {"type": "record", "name": name, "fields": fields}, made
    inner, values = draw(typed(levels - 1))
    if kind == "array":
        return {"type": kind, "items": inner}, st.lists(values, max_size=5)
    return {"type": kind, "values": inner}, st.dictionaries(st.text(max_size=5), values, max_size=5)


def _name(schema: Any) -> str:
    return schema if isinstance(schema, str) else schema.get("name", schema["type"])


def _chain(values: list[Any]) -> Any:
    chain = None
    for value in values:
        chain = {"v": value, "next": chain}
    return chain


def walks(schema: Any, body: bytes) -> bool:
    """Return whether the bytes are one value by the walk."""
    try:
        return AvroWalk(*parsed(Schema(json.dumps(schema))), {}).end_of(body) == len(body)
    except UnreadableError:
        return False


@pytest.mark.in_turn
@settings(max_examples=200, deadline=None)
@given(st.data())
def test_what_fastavro_wrote_passes_whole_and_nothing_else(data: st.DataObject) -> None:
    """No part of its beginning and nothing that is longer. Changed bytes that pass are read to the end by fastavro."""
    schema, values = data.draw(typed())
    body = encoded(schema, data.draw(values))
    assert walks(schema, body)
    assert not any(walks(schema, body[:end]) for end in range(max(0, len(body) - 40), len(body)))
    assert not walks(schema, body[: len(body) // 2]) or not body
    assert not any(walks(schema, body + bytes([more])) for more in (0, 1, 2, 0xFF))
    changed = bytearray(body)
    places = st.integers(0, max(0, len(body) - 1))
    for place, value in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), max_size=3)):
        changed[place : place + 1] = bytes([value])
    if walks(schema, bytes(changed)):
        file = io.BytesIO(changed)
        try:
            fastavro.schemaless_reader(file, fastavro.parse_schema(schema), None)
        except UnicodeDecodeError:
            return
        assert file.tell() == len(changed)
