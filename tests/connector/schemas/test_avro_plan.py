"""A plan reads what fastavro reads behind the walk, as the same values. What they refuse, it marks."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_streams.connector.errors import ConfigError, DecodeError
from spark_streams.connector.schemas.avro import AvroRead, AvroReader
from spark_streams.connector.schemas.avro_plan import plan_of
from spark_streams.connector.schemas.avro_steps import FEWEST, Step, read_values
from spark_streams.connector.schemas.fit import fitter
from spark_streams.connector.schemas.payload_columns import decode_array
from spark_streams.connector.schemas.payload_format import PayloadFormat
from spark_streams.connector.schemas.schema_columns import avro_columns
from spark_streams.connector.schemas.schema_registry import Schema
from spark_streams.connector.spark.arrow import arrow_schema
from spark_streams.connector.wire.lines import Spans
from tests.connector.schemas.avro_values import FIRST, READER, VERSIONS, encoded, form, record
from tests.connector.schemas.ddl import struct_of
from tests.connector.schemas.registry_server import RegistryServer

# -- random schemas, values and damage ---------------------------------------------------------------------------------

Values = Callable[[random.Random], Any]  # a value as it is stored
Typed = tuple[Any, Values]
_DAY = 86_400_000_000


def _logical(kind: str, logical: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": logical, **more}


def _number(bits: int) -> Values:
    return lambda chance: chance.choice(
        (chance.randint(-70, 70), chance.randint(-9000, 9000), chance.getrandbits(bits) - (1 << bits - 1))
    )


def _time(unit: int) -> Values:
    """Return values around the bounds of the years 1 to 9999, among others."""
    return lambda chance: chance.choice(
        (chance.randint(-9999, 9999), (-719_162 * _DAY) // unit - chance.randint(0, 1),
         (2_932_897 * _DAY) // unit - chance.randint(0, 1), chance.getrandbits(21) - (1 << 20))
    )  # fmt: skip


def _text(chance: random.Random) -> str:
    return "".join(chance.choices("abcü€😀\0", k=chance.choice((0, 1, 5, 80))))


_SIMPLE: list[Typed] = [
    ("null", lambda _: None),
    ("boolean", lambda chance: chance.random() < 0.5),
    ("int", _number(32)),
    ("long", _number(64)),
    ("float", lambda chance: struct.unpack("<f", chance.randbytes(4))[0]),
    ("double", lambda chance: struct.unpack("<d", chance.randbytes(8))[0]),
    ("string", _text),
    ("bytes", lambda chance: chance.randbytes(chance.choice((0, 1, 9, 70)))),
    (_logical("string", "uuid"), _text),
    (_logical("int", "time-millis"), _number(32)),
    (_logical("int", "date"), _time(_DAY)),
    (_logical("long", "timestamp-millis"), _time(1000)),
    (_logical("long", "timestamp-micros"), _time(1)),
    (_logical("long", "local-timestamp-millis"), _time(1000)),
    (_logical("long", "local-timestamp-micros"), _time(1)),
    (_logical("long", "timestamp-nanos"), _number(64)),
]


def typed(chance: random.Random, levels: int = 3, in_union: bool = False) -> Typed:
    kinds = ["simple"] * 4 + ["decimal", "fixed", "enum"]
    kinds += ["array", "map", "record"] * (levels > 0) + ["null", "null", "union"] * (levels > 0 and not in_union)
    kind, name = chance.choice(kinds), f"N{chance.getrandbits(64)}"
    if kind == "simple":
        return chance.choice(_SIMPLE)
    if kind == "decimal":
        return _decimal(chance, name)
    if kind == "fixed":
        size = chance.randint(0, 20)
        return {"type": kind, "name": name, "size": size}, lambda chance: chance.randbytes(size)
    if kind == "enum":
        symbols = [f"S{index}" for index in range(chance.choice((1, 2, 63, 64, 65, 130)))]
        return {"type": kind, "name": name, "symbols": symbols}, lambda chance: chance.choice(symbols)
    if kind in ("null", "union"):
        parts = [typed(chance, levels - 1, True) for _ in range(1 if kind == "null" else chance.randint(1, 4))]
        parts += [_SIMPLE[0]] * (kind == "null")
        chance.shuffle(parts)
        branches = {_name(one): (one, made) for one, made in parts}
        return [one for one, _ in branches.values()], lambda chance: _of_branch(
            chance.choice([*branches.values()]), chance
        )
    if kind == "record":
        fields = [(f"f{index}", *typed(chance, levels - 1)) for index in range(chance.randint(1, 5))]
        of = [{"name": field, "type": one} for field, one, _ in fields]
        return {"type": kind, "name": name, "fields": of}, lambda chance: {one: made(chance) for one, _, made in fields}
    inner, made = typed(chance, levels - 1)
    if kind == "array":
        return {"type": kind, "items": inner}, lambda chance: [made(chance) for _ in range(chance.choice((0, 1, 2, 5)))]
    return {"type": kind, "values": inner}, lambda chance: {
        _text(chance): made(chance) for _ in range(chance.randint(0, 4))
    }


def _decimal(chance: random.Random, name: str) -> Typed:
    precision = chance.randint(1, 38)
    schema = _logical("bytes", "decimal", precision=precision, scale=chance.randint(0, precision))
    size = chance.randint(1, 16)

    def number(chance: random.Random, bound: int) -> int:
        edge = min(10**precision, bound)
        small, large = chance.randint(-70, 70), chance.randint(-edge, edge)
        return max(-bound, min(bound - 1, chance.choice((small, large, edge, -edge, edge - 1, 1 - edge))))

    if chance.random() < 0.5:
        fixed = {**schema, "type": "fixed", "name": name, "size": size}
        return fixed, lambda chance: number(chance, 1 << 8 * size - 1).to_bytes(size, "big", signed=True)
    return schema, lambda chance: (one := number(chance, 1 << 127)).to_bytes(
        one.bit_length() // 8 + 1, "big", signed=True
    )


def _of_branch(branch: Typed, chance: random.Random) -> Any:
    kind, made = branch
    return None if kind == "null" else (_name(kind), made(chance))  # fastavro is told the branch


def _name(schema: Any) -> str:
    return schema if isinstance(schema, str) else schema.get("name", schema["type"])


def stored(schema: Any) -> Any:
    """Return a schema without logical types: fastavro writes values as they are stored."""
    if isinstance(schema, list):
        return [stored(one) for one in schema]
    if isinstance(schema, dict):
        return {key: stored(one) for key, one in schema.items() if key != "logicalType"}
    return schema


def damaged(body: bytes, chance: random.Random) -> bytes:
    """Flip, cut or append bytes, or leave them."""
    changed, how = bytearray(body), chance.choice(("no", "flip", "flip", "cut", "append"))
    if how == "flip" and body:
        for _ in range(chance.randint(1, 3)):
            changed[chance.randrange(len(body))] = chance.choice((0, 1, 2, 3, 0x7F, 0x80, 0xFF, chance.getrandbits(8)))
    if how == "cut":
        del changed[chance.randint(0, len(body)) :]
    return bytes(changed) + (chance.randbytes(chance.randint(1, 3)) if how == "append" else b"")


# -- what a plan reads, beside what fastavro reads ---------------------------------------------------------------------


def spans(bodies: list[bytes]) -> Spans:
    ends = np.cumsum([len(body) for body in bodies])
    return Spans(np.frombuffer(b"".join(bodies), np.uint8), ends - [len(body) for body in bodies], ends)


def planned(read: AvroRead, into: str) -> Step | None:
    return plan_of(read, pa.struct(list(arrow_schema(struct_of(into)))))


def share_read(read: AvroRead, into: str, bodies: list[bytes]) -> float:
    """Compare what the plan reads with what fastavro reads, and return how much of it the plan reads. -1: no plan."""
    struct = struct_of(into)
    plan, fit = planned(read, into), fitter(struct)
    if plan is None:
        return -1
    structs, is_read = read_values(spans(bodies), plan)
    assert len(structs) == len(bodies)
    wanted: dict[int, Any] = {}
    for row, body in enumerate(bodies):
        try:
            wanted[row] = fit(read(body))
        except Exception:  # noqa: BLE001 - as decoder.py takes the errors of libraries
            continue
    rows = np.flatnonzero(is_read).tolist()
    assert not {*rows} - wanted.keys()
    found = structs.take(pa.array(rows, pa.int64()))
    found.validate(full=True)
    assert repr(found.to_pylist()) == repr(pa.array([wanted[row] for row in rows], found.type).to_pylist())
    assert found.type == pa.struct(list(arrow_schema(struct)))
    return len(rows) / max(1, len(wanted))


def columns(schema: Any) -> str:
    """Return those fields that a column can hold."""
    kinds = {}
    for field in schema["fields"]:
        try:
            kinds |= avro_columns({**schema, "fields": [field]})
        except ConfigError:
            continue
    return ", ".join(f"`{name}` {kind}" for name, kind in kinds.items())


def evolved(schema: Any, chance: random.Random) -> Any:
    """Return another version of a schema: most of them can read it."""
    if isinstance(schema, list):
        others = [evolved(one, chance) for one in schema]
        return chance.choice((schema, others, others[-1]))
    if chance.random() < 0.15 and schema != "null":
        return ["null", evolved(schema, chance)]
    if isinstance(schema, str) or "logicalType" in schema:
        kind = _name(stored(schema))
        more = {"int": ("long", "double", _SIMPLE[11][0]), "long": ("double", _SIMPLE[12][0]), "float": ("double",)}
        return chance.choice((schema, schema, schema, stored(schema), *more.get(kind, ())))
    if schema["type"] == "record":
        fields = [_evolved_field(one, chance) for one in schema["fields"] if chance.random() < 0.9]
        added = [
            {"name": "n1", "type": ["null", "string"], "default": None},
            {"name": "n2", "type": _SIMPLE[10][0], "default": 7},
            {"name": "n3", "type": {"type": "map", "values": "bytes"}, "default": {"k": "\u00ff"}},
            {"name": "n4", "type": "string", "default": "x"},
        ]
        fields += chance.sample(added, chance.randint(0, 2))
        chance.shuffle(fields)
        return {**schema, "fields": fields}
    key = {"array": "items", "map": "values"}.get(schema["type"])
    return {**schema, key: evolved(schema[key], chance)} if key else schema


def _evolved_field(field: Any, chance: random.Random) -> Any:
    kind = evolved(field["type"], chance)
    if chance.random() < 0.2:
        return {"name": f"{field['name']}_new", "aliases": [field["name"]], "type": kind}
    return {"name": field["name"], "type": kind}


def reading(writer: Any, reader: Any = None) -> AvroRead:
    return AvroReader(reader and Schema(json.dumps(reader))).reading(Schema(json.dumps(writer)), ())


def drawn(chance: random.Random) -> tuple[Any, list[bytes]]:
    """Return a schema, and values of it."""
    fields = [(f"f{index}", *typed(chance)) for index in range(chance.randint(1, 4))]
    schema = record(*({"name": name, "type": kind} for name, kind, _ in fields))
    values = [{name: made(chance) for name, _, made in fields} for _ in range(64)]
    return schema, [encoded(stored(schema), value) for value in values]


@pytest.mark.parametrize("seed", range(200))
def test_a_plan_reads_what_fastavro_reads(seed: int) -> None:
    chance = random.Random(seed)
    schema, bodies = drawn(chance)
    if into := columns(schema):
        share_read(reading(schema), into, bodies)
        share_read(reading(schema), into, [damaged(body, chance) for body in bodies])


@pytest.mark.parametrize("seed", range(200))
def test_a_plan_reads_another_version_as_fastavro_does(seed: int) -> None:
    chance = random.Random(seed)
    writer, bodies = drawn(chance)
    reader = evolved(writer, chance)
    if isinstance(reader, dict) and (into := columns(reader)):
        share_read(reading(writer, reader), into, bodies)
        share_read(reading(writer, reader), into, [damaged(body, chance) for body in bodies])


# -- pages of a column -------------------------------------------------------------------------------------------------


def in_small_pages(values: pa.Array, given: PayloadFormat, into: str) -> list[Any]:
    """Return what `decode` makes of pages that are too small for a plan."""
    size = FEWEST - 1
    pages = [values.slice(first, size) for first in range(0, len(values), size)]
    return [one for page in pages for one in decode_array(page, given, struct_of(into)).to_pylist()]


@pytest.mark.parametrize("framed", [False, True])
@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_a_page_is_what_its_values_are_one_by_one(kind: pa.DataType, framed: bool) -> None:
    """Nulls, damaged values and a slice of an array; framed: with IDs of schemas, some of them wrong."""
    chance = random.Random(7)
    schema, bodies = drawn(random.Random(8))
    heads = (b"\0\0\0\0\1", b"\0\0\0\0\2", b"\1\0\0\0\1", b"\0\0") if framed else (b"",)
    values = [chance.choice(heads) + chance.choice((body, damaged(body, chance))) for body in bodies * 4]
    page = pa.array([None, *values, None, b"", None], kind).slice(3, 4 * len(bodies))
    given, into = form(schema, framed=framed), columns(schema)
    found = decode_array(page, given, struct_of(into))
    assert repr(found.to_pylist()) == repr(in_small_pages(page, given, into))
    assert {*found.field("reason").to_pylist()} == {None, "bad-value", *(["bad-framing"] if framed else [])}
    assert 0 < found.field("value").null_count < len(page)


@pytest.mark.parametrize("values", [[], [None] * 100, [b""] * 100, [b"", None] * 50])
def test_a_page_without_bytes(values: list[bytes | None]) -> None:
    found = decode_array(pa.array(values, pa.binary()), form(FIRST), struct_of(columns(FIRST)))
    assert found.to_pylist() == [{"value": None, "reason": None if one is None else "bad-value"} for one in values]


def test_a_column_of_texts() -> None:
    body = encoded(FIRST, {"customer": "ann", "amount": 7}).decode()
    found = decode_array(pa.array([body] * FEWEST), form(FIRST), struct_of(columns(FIRST)))
    assert found.field("value").to_pylist() == [{"customer": "ann", "amount": 7}] * FEWEST


def test_the_first_wrong_value_of_a_page_stops_the_query() -> None:
    """Also if it does not fit the struct: the plan has marked it."""
    schema = record({"name": "x", "type": "long"})
    values = [encoded(schema, {"x": number}) for number in (*range(FEWEST), 2**40)]
    with pytest.raises(DecodeError, match="column 'payload' cannot be decoded: bad-value; "):
        decode_array(pa.array(values), form(schema), struct_of("x INT"), "payload")


def test_each_version_of_a_registry_has_its_plan(registry: RegistryServer) -> None:
    """An ID that the registry does not have is a reason, beside them."""
    for schema_id, schema in VERSIONS.items():
        registry.add(schema_id, schema)
    given = form(READER, registry=registry.url, framed=True)
    value = {"customer": "ann", "buyer": "ann", "amount": 7, "currency": "EUR", "note": None}
    versions = [encoded(schema, value, schema_id) for schema_id, schema in VERSIONS.items()]
    page = pa.array([*versions, b"\0\0\0\0\x63"] * FEWEST)
    found = decode_array(page, given, struct_of(columns(READER)))
    assert found.to_pylist() == in_small_pages(page, given, columns(READER))
    assert [one["reason"] for one in found.to_pylist()[:4]] == [None, None, None, "unknown-schema"]


# -- single bounds -----------------------------------------------------------------------------------------------------


def is_all_read(schema: Any, value: object, count: int = FEWEST, into: str = "") -> bool:
    body = encoded(stored(schema), value)
    return share_read(reading(schema), into or columns(schema), [body] * count) == 1


@pytest.mark.parametrize(
    ("kind", "value"),
    [(kind, made(random.Random(3))) for kind, made in _SIMPLE[1:]]
    + [
        ({"type": "array", "items": "int"}, [*range(300)]),
        ({"type": "map", "values": {"type": "array", "items": "string"}}, {"a": ["b", "c"], "d": []}),
        (["null", "long"], None),
        (["null", "long"], ("long", 2**63 - 1)),
        (_logical("bytes", "decimal", precision=38, scale=2), (10**38 - 1).to_bytes(16, "big")),
    ],
)
def test_a_plan_reads_all_values_of_a_type(kind: Any, value: object) -> None:
    """It is not only right because it reads nothing."""
    assert is_all_read(record({"name": "x", "type": kind}), {"x": value})


def test_a_few_long_arrays_are_left_to_fastavro() -> None:
    """A step of numpy for each item of few lanes takes longer."""
    schema = record({"name": "x", "type": {"type": "array", "items": "int"}})
    short, long = (encoded(schema, {"x": [1] * count}) for count in (3, 1000))
    assert share_read(reading(schema), columns(schema), [short] * FEWEST + [long]) == FEWEST / (FEWEST + 1)


@pytest.mark.parametrize(
    "kind",
    [
        {"type": "array", "items": "null"},
        {"type": "array", "items": record(name="Empty")},
        record({"name": "next", "type": ["null", "Node"]}, {"name": "x", "type": "int"}, name="Node"),
    ],
)
def test_what_avro_walk_counts_has_no_plan(kind: Any) -> None:
    """Items without bytes, and types that contain themselves: also if no column wants them."""
    schema = record({"name": "x", "type": kind}, {"name": "y", "type": "int"})
    assert planned(reading(schema), "y INT") is None
