"""What encode writes, decode reads as it was. A value that does not fit the schema is refused, and never rounded."""

from __future__ import annotations

import json
import math
import struct
from base64 import b64encode
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_streams.connector.errors import EncodeError, RegistryError, SchemaError
from spark_streams.connector.schemas.decoder import frame, unframe
from spark_streams.connector.schemas.payload_columns import Encoder, EncodeTarget, encode_array
from spark_streams.connector.schemas.payload_format import PayloadFormat
from spark_streams.connector.schemas.schema_columns import avro_columns
from spark_streams.connector.schemas.schema_registry import Registry, Schema
from spark_streams.connector.spark.arrow import arrow_schema
from tests.connector.schemas.avro_values import record
from tests.connector.schemas.ddl import struct_of
from tests.connector.schemas.registry_server import RegistryServer
from tests.connector.schemas.test_avro import DECIMAL, ENUM, FIXED, INNER, decoded, into_of, of_type
from tests.connector.schemas.test_protobuf import OPTIONAL, F, descriptors
from tests.connector.schemas.test_protobuf import into as protobuf_columns
from tests.connector.schemas.test_schema_registry import QUICK

AVRO = record(
    {"name": "b", "type": "boolean"}, {"name": "i", "type": "int"}, {"name": "l", "type": ["null", "long"]},
    {"name": "f", "type": "float"}, {"name": "d", "type": "double"}, {"name": "s", "type": ["string", "null"]},
    {"name": "by", "type": "bytes"}, {"name": "x", "type": {"type": "fixed", "name": "X", "size": 2}},
    {"name": "e", "type": ENUM}, {"name": "dec", "type": ["null", DECIMAL]}, {"name": "fix", "type": FIXED},
    {"name": "day", "type": of_type("int", "date")}, {"name": "ms", "type": of_type("long", "timestamp-millis")},
    {"name": "us", "type": of_type("long", "timestamp-micros")},
    {"name": "lms", "type": of_type("long", "local-timestamp-millis")},
    {"name": "lus", "type": ["null", of_type("long", "local-timestamp-micros")]},
    {"name": "time", "type": of_type("int", "time-millis")}, {"name": "uuid", "type": of_type("string", "uuid")},
    {"name": "il", "type": ["int", "long"]}, {"name": "fd", "type": ["null", "float", "double"]},
    {"name": "inner", "type": ["null", INNER]}, {"name": "list", "type": {"type": "array", "items": ["null", "Inner"]}},
    {"name": "map", "type": {"type": "map", "values": ["null", "E"]}},
)  # fmt: skip
JSON: dict[str, Any] = {
    "type": "object",
    "properties": {"n": {"type": ["integer", "null"]}, "in": {"required": ["a"], "properties": {"a": {}}}},
    "required": ["n"],
}
JSON_COLUMNS = (
    "b BOOLEAN, n INT, l BIGINT, f FLOAT, d DOUBLE, dec DECIMAL(12, 3), s STRING, day DATE, t TIMESTAMP, "
    "ntz TIMESTAMP_NTZ, in STRUCT<a: INT, c: STRING>, list ARRAY<STRUCT<a: INT>>, map MAP<STRING, DOUBLE>"
)

FIRST, LAST = datetime(1, 1, 2), datetime(9999, 12, 30)
times = st.datetimes(FIRST, LAST).map(lambda time: time.replace(fold=0))
moments = times.map(lambda time: time.replace(tzinfo=ZoneInfo("UTC")))  # as Arrow gives them
ints, longs = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]))
floats, doubles = st.floats(width=32, allow_nan=False), st.floats(allow_nan=False)
decimals = st.integers(-999_999, 999_999).map(lambda number: Decimal(number).scaleb(-2))


def of_millis(time: datetime) -> datetime:
    return time.replace(microsecond=time.microsecond // 1000 * 1000)


inner = st.fixed_dictionaries({"a": ints, "b": st.none() | texts})
avro_values = st.fixed_dictionaries({
    "b": st.booleans(), "i": ints, "l": st.none() | longs, "f": floats, "d": doubles, "s": st.none() | texts,
    "by": st.binary(), "x": st.binary(min_size=2, max_size=2), "e": st.sampled_from(["NEW", "PAID"]),
    "dec": st.none() | decimals, "fix": decimals, "day": st.dates(), "ms": moments.map(of_millis), "us": moments,
    "lms": times.map(of_millis), "lus": st.none() | times, "time": ints, "uuid": texts, "il": longs,
    "fd": st.none() | doubles, "inner": st.none() | inner, "list": st.lists(st.none() | inner, max_size=3),
    "map": st.dictionaries(texts, st.none() | st.sampled_from(["NEW", "PAID"]), max_size=3),
})  # fmt: skip
protobuf_values = st.fixed_dictionaries({
    "d": doubles, "f": floats, "i64": longs, "u64": st.integers(0, 2**64 - 1).map(Decimal), "i32": ints,
    "f64": st.integers(0, 2**64 - 1).map(Decimal), "f32": st.integers(0, 2**32 - 1), "b": st.booleans(), "s": texts,
    "by": st.binary(), "u32": st.integers(0, 2**32 - 1), "sf32": ints, "sf64": longs, "s32": ints, "s64": longs,
    "state": st.sampled_from(["NEW", "PAID"]), "line": st.none() | st.fixed_dictionaries({"sku": texts}),
    "lines": st.lists(st.fixed_dictionaries({"sku": texts}), max_size=3),
    "counts": st.dictionaries(texts, ints, max_size=3), "at": st.none() | moments, "maybe": st.none() | ints,
    "note": st.none() | texts,
})  # fmt: skip
json_values = st.fixed_dictionaries({
    "b": st.none() | st.booleans(), "n": st.none() | ints, "l": longs,
    "f": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "d": st.none() | st.floats(allow_nan=False, allow_infinity=False),
    "dec": st.integers(-(10**12) + 1, 10**12 - 1).map(lambda number: Decimal(number).scaleb(-3)), "s": texts,
    "day": st.none() | st.dates(), "t": moments, "ntz": times,
    "in": st.none() | st.fixed_dictionaries({"a": st.none() | ints, "c": st.none() | texts}),
    "list": st.none() | st.lists(st.none() | st.fixed_dictionaries({"a": st.none() | ints}), max_size=3),
    "map": st.dictionaries(texts, st.none() | st.floats(allow_nan=False, allow_infinity=False), max_size=3),
})  # fmt: skip


def encoded(
    values: list[Any], target: EncodeTarget, columns: str, strict: str = ""
) -> list[tuple[bytes | None, str | None]]:
    kind = struct_of(columns)
    target = EncodeTarget(
        target.format, target.schema, target.descriptors, target.message, target.schema_id, kind.json()
    )
    array = pa.array([value and _for_arrow(value) for value in values], pa.struct(list(arrow_schema(kind))))
    return [(one["value"], one["reason"]) for one in encode_array(array, target, strict).to_pylist()]


def _for_arrow(value: dict[str, Any]) -> dict[str, Any]:
    """Arrow makes a map of pairs."""
    return {name: [*part.items()] if name in ("map", "counts") and part else part for name, part in value.items()}


def avro(schema: Any, schema_id: int | None = None) -> EncodeTarget:
    return EncodeTarget("avro", Schema(json.dumps(schema)), schema_id=schema_id)


def json_target(schema: Any) -> EncodeTarget:
    return EncodeTarget("json", Schema(json.dumps(schema)))


def same(found: Any, value: Any) -> None:
    """Also of the sign of zero, and of digits behind the point."""
    assert repr(in_order(found)) == repr(in_order(value))


def in_order(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: in_order(part) for name, part in sorted(value.items())}
    return [in_order(part) for part in value] if isinstance(value, list) else value


def returned(value: Any, target: EncodeTarget, form: PayloadFormat, columns: str) -> Any:
    ((body, reason),) = encoded([value], target, columns)
    assert reason is None
    ((found, reason),) = decoded([body], form, columns)
    assert reason is None
    return found


@given(avro_values, st.sampled_from([None, 7]))
@settings(deadline=None, max_examples=50)
def test_avro_is_read_as_it_was(value: Any, schema_id: int | None) -> None:
    form = PayloadFormat("avro", json.dumps(AVRO), framed=schema_id is not None)
    same(returned(value, avro(AVRO, schema_id), form, into_of(AVRO)), value)


@given(protobuf_values, st.sampled_from([None, 7]))
@settings(deadline=None, max_examples=50)
def test_protobuf_is_read_as_it_was(value: Any, schema_id: int | None) -> None:
    target = EncodeTarget("protobuf", None, descriptors(), "shop.Order", schema_id)
    form = PayloadFormat("protobuf", "", descriptors(), "shop.Order", framed=schema_id is not None)
    found = returned(value, target, form, protobuf_columns())
    same(found, value)


@given(json_values)
@settings(deadline=None, max_examples=50)
def test_json_is_read_as_it_was(value: Any) -> None:
    found = returned(value, json_target(JSON), PayloadFormat("json", json.dumps(JSON)), JSON_COLUMNS)
    value["f"] = struct.unpack("f", struct.pack("f", value["f"]))[0]
    same(found, value)


@given(st.integers(0, 2**31 - 1), st.lists(st.integers(0, 1000), min_size=1, max_size=5))
def test_the_framing_of_protobuf_is_read_as_it_was(schema_id: int, indexes: list[int]) -> None:
    assert unframe(frame(schema_id, tuple(indexes)) + b"x", True) == (schema_id, tuple(indexes), b"x")
    assert unframe(frame(schema_id, ()) + b"x", False) == (schema_id, (), b"x")


def test_the_first_message_has_the_short_framing() -> None:
    assert frame(1, (0,)) == b"\0\0\0\0\1\0"
    assert frame(258, (1, 0)) == b"\0\0\0\1\2\4\2\0"


@pytest.mark.parametrize(
    ("kind", "value", "column"),
    [
        ("int", 2**31, "BIGINT"),
        ("int", None, "INT"),
        ("int", 1.0, "DOUBLE"),
        ("long", Decimal("1.5"), "DECIMAL(2, 1)"),
        ("float", 0.1, "DOUBLE"),
        ("double", 2**53 + 1, "BIGINT"),
        ("boolean", 1, "INT"),
        ("string", b"x", "BINARY"),
        ("bytes", "x", "STRING"),
        (ENUM, "LOST", "STRING"),
        ({"type": "fixed", "name": "X", "size": 2}, b"x", "BINARY"),
        (DECIMAL, Decimal("1.234"), "DECIMAL(10, 3)"),
        (DECIMAL, Decimal("12345.00"), "DECIMAL(10, 2)"),
        (DECIMAL, 1.5, "DOUBLE"),
        ({**FIXED, "size": 1}, Decimal("1.28"), "DECIMAL(10, 2)"),
        (of_type("long", "timestamp-millis"), datetime(2026, 1, 1, microsecond=1, tzinfo=UTC), "TIMESTAMP"),
        (of_type("long", "timestamp-micros"), datetime(2026, 1, 1), "TIMESTAMP_NTZ"),
        (of_type("long", "local-timestamp-micros"), datetime(2026, 1, 1, tzinfo=UTC), "TIMESTAMP"),
        (of_type("int", "date"), datetime(2026, 1, 1, tzinfo=UTC), "TIMESTAMP"),
        (["int", "string"], 1.5, "DOUBLE"),
        (["null"], 1, "INT"),
        ({"type": "map", "values": "int"}, {"a": 1, "b": None}, "STRUCT<a: INT, b: INT>"),
        ({"type": "map", "values": "string"}, ["ab"], "ARRAY<STRING>"),
        ({"type": "array", "items": "int"}, [1, None], "ARRAY<INT>"),
    ],
)  # fmt: skip
def test_a_value_that_avro_cannot_hold_is_refused_by_its_field(kind: Any, value: Any, column: str) -> None:
    schema = record({"name": "x", "type": kind})
    assert encoded([{"x": value}, None], avro(schema), f"x {column}") == [(None, "bad-value: x"), (None, None)]


def test_the_path_of_a_field_is_named() -> None:
    schema = record({"name": "line", "type": {"type": "array", "items": INNER}})
    assert encoded([{"line": [{"a": 2**31, "b": None}]}], avro(schema), "line ARRAY<STRUCT<a: BIGINT, b: STRING>>") == [
        (None, "bad-value: line.a")
    ]
    with pytest.raises(EncodeError, match="column 'order' does not fit the schema: bad-value: line; cast that field"):
        encoded([{"line": None}], avro(schema), "line ARRAY<INT>", strict="order")
    found = encoded([{"line": [{"z": 1}]}], avro(schema), "line ARRAY<STRUCT<z: INT>>")
    assert found == [(None, "bad-value: line.z")]


def test_a_field_that_the_struct_does_not_have_gets_its_default() -> None:
    schema = record(
        {"name": "d", "type": DECIMAL, "default": "\x7b"}, {"name": "n", "type": ["null", "int"]},
        {"name": "m", "type": {"type": "map", "values": "int"}, "default": {}}, {"name": "i", "type": "int"},
    )  # fmt: skip
    ((body, _),) = encoded([{"i": 1}], avro(schema), "i INT")
    form = PayloadFormat("avro", json.dumps(schema))
    assert decoded([body], form, into_of(schema)) == [({"d": Decimal("1.23"), "n": None, "m": {}, "i": 1}, None)]
    assert encoded([{"n": 1}], avro(schema), "n INT") == [(None, "bad-value: i")]


def test_a_type_that_contains_itself_and_a_union_are_written() -> None:
    tree = record({"name": "u", "type": ["null", "string", "long"]}, {"name": "t", "type": ["null", "Tree"]},
                  name="Tree")  # fmt: skip
    text = "u BIGINT, t STRUCT<u: STRING>"
    ((body, reason),) = encoded([{"u": 2**40, "t": {"u": "x"}}], avro(tree), text)
    assert reason is None
    assert decoded([body], PayloadFormat("avro", json.dumps(tree)), text) == [({"u": 2**40, "t": {"u": "x"}}, None)]


def test_a_time_in_another_zone_is_the_same_moment_and_one_that_python_lacks_is_refused() -> None:
    schema = record({"name": "t", "type": of_type("long", "timestamp-micros")})
    kind = pa.struct([("t", pa.timestamp("us", "Pacific/Auckland"))])
    moment = datetime(2026, 4, 5, 2, 30, tzinfo=timezone(timedelta(hours=12)))
    target = EncodeTarget("avro", Schema(json.dumps(schema)), columns="{}")
    array = pa.StructArray.from_arrays([pa.array([moment, None], kind[0].type)], fields=[kind[0]])
    body = encode_array(array, target)[0]["value"].as_py()
    assert decoded([body], PayloadFormat("avro", json.dumps(schema)), "t TIMESTAMP") == [
        ({"t": moment.astimezone(UTC)}, None)
    ]
    late_array = pa.StructArray.from_arrays([pa.array([2**60, 0], pa.int64()).cast(kind[0].type)], fields=[kind[0]])
    found = encode_array(late_array, target).to_pylist()
    assert [one["reason"] for one in found] == ["bad-value", None]


@pytest.mark.parametrize(
    "name", ["DESCRIPTOR", "HasField", "WhichOneof", "SetInParent", "IsInitialized", "SerializeToString", "add"]
)
def test_a_field_may_have_the_name_of_a_part_of_a_message(name: str) -> None:
    """Before, each value with a field DESCRIPTOR was refused. On both levels, and within a oneof."""
    file = descriptor_pb2.FileDescriptorProto(name="odd.proto", syntax="proto2")
    odd = file.message_type.add(name="Odd")
    odd.oneof_decl.add(name="either")
    odd.field.add(name=name, number=1, type=F.TYPE_INT32, label=OPTIONAL, oneof_index=0)
    odd.field.add(name="x", number=2, type=F.TYPE_INT32, label=OPTIONAL, oneof_index=0)
    odd.field.add(name="inner", number=3, type=F.TYPE_MESSAGE, type_name=".Odd", label=OPTIONAL)
    odd.field.add(name="more", number=4, type=F.TYPE_MESSAGE, type_name=".Odd", label=F.LABEL_REPEATED)
    content = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    value = {name: 7, "x": None, "inner": {name: 8}, "more": [{name: 9}]}
    into = f"{name} INT, x INT, inner STRUCT<{name}: INT>, more ARRAY<STRUCT<{name}: INT>>"
    target = EncodeTarget("protobuf", None, content, "Odd")
    (data, reason), (_, wrong) = encoded([value, value | {"x": 1}], target, into)
    assert data is not None
    assert (reason, wrong) == (None, "bad-value: x")
    assert decoded([data], PayloadFormat("protobuf", "", content, "Odd"), into) == [(value, None)]


@pytest.mark.parametrize(
    ("value", "columns", "path"),
    [
        ({"i32": 2**31}, "i32 BIGINT", "i32"),
        ({"u32": -1}, "u32 INT", "u32"),
        ({"u64": Decimal(2**64)}, "u64 DECIMAL(20, 0)", "u64"),
        ({"i32": None}, "i32 INT", "i32"),
        ({"lines": None}, "lines ARRAY<STRUCT<sku: STRING>>", "lines"),
        ({"lines": [None]}, "lines ARRAY<STRUCT<sku: STRING>>", "lines"),
        ({"lines": [{"sku": None}]}, "lines ARRAY<STRUCT<sku: STRING>>", "lines.sku"),
        ({"f": 0.1}, "f DOUBLE", "f"),
        ({"state": "LOST"}, "state STRING", "state"),
        ({"s": 1}, "s INT", "s"),
        ({"line": {"z": 1}}, "line STRUCT<z: INT>", "line.z"),
        ({"maybe": 2**31}, "maybe BIGINT", "maybe"),
    ],
)
def test_a_value_that_protobuf_cannot_hold_is_refused_by_its_field(value: Any, columns: str, path: str) -> None:
    target = EncodeTarget("protobuf", None, descriptors(), "shop.Order")
    assert encoded([value], target, columns) == [(None, f"bad-value: {path}")]


def test_two_fields_of_a_oneof_and_a_required_field_that_is_missing() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="old.proto", syntax="proto2")
    old = file.message_type.add(name="Old")
    old.oneof_decl.add(name="either")
    for number, name in enumerate("ab", 1):
        old.field.add(name=name, number=number, type=F.TYPE_INT32, label=OPTIONAL, oneof_index=0)
    old.field.add(name="r", number=3, type=F.TYPE_INT32, label=F.LABEL_REQUIRED)
    content = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    values = [{"a": 1, "b": None, "r": 1}, {"a": 1, "b": 2, "r": 1}, {"a": 1, "b": None, "r": None}]
    found = encoded(values, EncodeTarget("protobuf", None, content, "Old"), "a INT, b INT, r INT")
    assert [reason for _, reason in found] == [None, "bad-value: b", "bad-value: r"]


@pytest.mark.parametrize(
    ("value", "columns", "path"),
    [
        ({"n": 1, "d": math.nan}, "n INT, d DOUBLE", "d"),
        ({"n": 1, "f": math.inf}, "n INT, f FLOAT", "f"),
        ({"n": "x"}, "n STRING", "n"),
        ({"in": {"a": 1}}, "in STRUCT<a: INT>", "required"),
        ({"n": 1, "in": {"c": "x"}}, "n INT, in STRUCT<c: STRING>", "in"),
    ],
)
def test_a_value_that_its_json_schema_refuses(value: Any, columns: str, path: str) -> None:
    assert encoded([value], json_target(JSON), columns) == [(None, f"bad-value: {path}")]


def test_a_null_member_is_left_out_unless_it_is_required() -> None:
    found = encoded([{"n": None, "in": {"a": None, "c": None}, "s": None}], json_target(JSON),
                    "n INT, in STRUCT<a: INT, c: STRING>, s STRING")  # fmt: skip
    assert found == [(b'{"in":{"a":null},"n":null}', None)]


def test_a_type_or_a_reference_that_json_does_not_have_is_named() -> None:
    with pytest.raises(SchemaError, match="x has type binary, which JSON does not have: cast it to STRING"):
        encoded([{"x": b""}], json_target({}), "x BINARY")
    with pytest.raises(SchemaError, match="JSON Schema refers to .*elsewhere.example/x.json"):
        encoded([{"x": 1}], json_target({"$ref": "https://elsewhere.example/x.json"}), "x INT")


def test_a_schema_is_asked_for_once_by_its_subject(registry: RegistryServer) -> None:
    registry.add_version("shop/order", 3, AVRO)
    registry.answers["/subjects/shop/order/versions/latest"] = registry.answers["/subjects/shop/order/versions/3"] | {
        "id": 9
    }
    client = Registry(registry.url, patience=QUICK)
    registry.faults = [503]
    found = [client.version("shop/order", "latest") for _ in range(3)]
    assert {schema.schema_id for schema in found} == {9}
    assert registry.requests == {"/subjects/shop/order/versions/latest": 2}
    with pytest.raises(RegistryError, match="gives subject 'shop/order' no ID"):
        client.version("shop/order", "3")
    with pytest.raises(RegistryError, match="'none' has no schema .version latest. in the registry .*Register one"):
        client.version("none", "latest")


def test_a_message_of_a_registry_has_its_indexes() -> None:
    file = descriptor_pb2.FileDescriptorSet.FromString(descriptors()).file[0].SerializeToString()
    target = EncodeTarget("protobuf", Schema(b64encode(file).decode(), "PROTOBUF"), b"", "shop.Order.Line", 5)
    assert Encoder(target).encode({"sku": "a"}) == b"\0\0\0\0\5\4\2\0\x0a\1a"
    with pytest.raises(KeyError, match="only refers"):
        Encoder(EncodeTarget("protobuf", target.schema, b"", "google.protobuf.Timestamp", 5))


def test_the_columns_of_the_schema_are_those_of_decode() -> None:
    """Else the round trip above would leave types out."""
    kinds = " ".join(avro_columns(AVRO).values())
    for kind in ("BOOLEAN", "INT", "BIGINT", "FLOAT", "DOUBLE", "STRING", "BINARY", "DECIMAL", "DATE", "TIMESTAMP",
                 "TIMESTAMP_NTZ", "STRUCT", "ARRAY", "MAP"):  # fmt: skip
        assert kind in kinds
