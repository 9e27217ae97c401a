"""A logical type that another version of a schema adds, removes or changes: the stored number, as the reader has it."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from spark_streams.connector.errors import SchemaError
from spark_streams.connector.schemas.avro import AvroReader
from spark_streams.connector.schemas.decode import columns_of
from spark_streams.connector.schemas.reasons import OTHER_SCHEMA, UnreadableError
from spark_streams.connector.schemas.schema_columns import avro_columns
from spark_streams.connector.schemas.schema_registry import Schema
from tests.connector.schemas.avro_values import encoded, form, record
from tests.connector.schemas.test_avro import of_type

MILLIS, MICROS, NANOS = (of_type("long", f"timestamp-{unit}") for unit in ("millis", "micros", "nanos"))
LOCAL_MILLIS, LOCAL_MICROS = (of_type("long", f"local-timestamp-{unit}") for unit in ("millis", "micros"))
DATE, TIME, TIME_MICROS = of_type("int", "date"), of_type("int", "time-millis"), of_type("long", "time-micros")
UUID = of_type("string", "uuid")


def decimal(precision: int, scale: int, kind: str = "bytes") -> dict[str, Any]:
    return {**stored(kind), "logicalType": "decimal", "precision": precision, "scale": scale}


def stored(kind: str) -> dict[str, Any]:
    return {"type": "fixed", "name": "F", "size": 3} if kind == "fixed" else {"type": kind}


def one_field(name: str, kind: Any) -> Any:
    return record({"name": "t", "type": kind}, name=name)


def read(writer: Any, reader: Any, raw: object) -> Any:
    """Return what the reader's schema makes of a value. raw: as it is stored, without logical types."""
    schemas = [Schema(json.dumps(record({"name": "x", "type": kind}))) for kind in (writer, reader)]
    body = encoded(_without_logical(json.loads(schemas[0].text)), {"x": raw})
    return AvroReader(schemas[1]).reading(schemas[0], ())(body)["x"]


def _without_logical(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_logical(one) for one in schema]
    if isinstance(schema, dict):
        return {key: _without_logical(one) for key, one in schema.items() if key != "logicalType"}
    return schema


AT = datetime(2026, 1, 31, 23, 59, 59, 123000, UTC)
MS = 1769903999123
CASES = [
    ("long", MILLIS, MS, AT),
    (MILLIS, "long", MS, MS),
    ("long", MICROS, MS * 1000, AT),
    (MICROS, "long", MS * 1000, MS * 1000),
    ("long", LOCAL_MILLIS, MS, AT.replace(tzinfo=None)),
    (LOCAL_MICROS, "long", MS, MS),
    ("int", MILLIS, 1000, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
    ("int", DATE, 1, date(1970, 1, 2)),
    (DATE, "int", -1, -1),
    (DATE, "long", 1, 1),
    (DATE, "double", 1, 1.0),
    (MILLIS, "double", 1, 1.0),
    ("int", TIME, 7, 7),
    (TIME, "int", 7, 7),
    ("long", TIME_MICROS, 7, 7),
    (TIME_MICROS, "long", 7, 7),
    ("bytes", decimal(6, 2), b"\x7b", Decimal("1.23")),
    (decimal(6, 2), "bytes", b"\x7b", b"\x7b"),
    ("string", decimal(6, 2), "{", Decimal("1.23")),
    (decimal(6, 2), "string", b"{", "{"),
    (stored("fixed"), decimal(6, 2, "fixed"), b"\0\0\x7b", Decimal("1.23")),
    (decimal(6, 2, "fixed"), stored("fixed"), b"\0\0\x7b", b"\0\0\x7b"),
    ("string", UUID, "a", "a"),
    (UUID, "string", "a", "a"),
    # The moment and the number stay: both types say which they are.
    (MILLIS, MICROS, MS, AT),
    (MICROS, MILLIS, MS * 1000 + 456, AT.replace(microsecond=123456)),
    (NANOS, MICROS, MS * 1_000_000, AT),
    (MICROS, NANOS, MS * 1000, MS * 1_000_000),
    (LOCAL_MILLIS, MICROS, MS, AT),
    (MILLIS, LOCAL_MICROS, MS, AT.replace(tzinfo=None)),
    (TIME, TIME_MICROS, 7, 7000),
    (decimal(6, 2), decimal(10, 2), b"\x7b", Decimal("1.23")),
    (decimal(10, 2), decimal(3, 2), b"\x01\x00\x00", Decimal("655.36")),  # the column refuses it
    (decimal(6, 2, "fixed"), decimal(7, 2, "fixed"), b"\xff\xff\xff", Decimal("-0.01")),
    # In what is around.
    ("long", ["null", MILLIS], MS, AT),
    (["null", "long"], ["null", MILLIS], MS, AT),
    (["null", "long"], ["null", MILLIS], None, None),
    (["null", MILLIS], ["null", "long"], MS, MS),
    (["null", MILLIS], "long", MS, MS),
    (["null", "long"], MILLIS, MS, AT),
    (["string", "long"], ["string", MILLIS], MS, AT),
    ([DATE, "string"], ["int", "string"], 1, 1),
    (["null", "bytes"], ["null", decimal(6, 2)], b"\x7b", Decimal("1.23")),
    (["null", stored("fixed")], ["null", decimal(6, 2, "fixed")], b"\0\0\x7b", Decimal("1.23")),
    ({"type": "array", "items": "long"}, {"type": "array", "items": MILLIS}, [MS, MS], [AT, AT]),
    ({"type": "array", "items": ["null", MILLIS]}, {"type": "array", "items": ["null", "long"]}, [MS, None],
     [MS, None]),
    ({"type": "map", "values": DATE}, {"type": "map", "values": "int"}, {"k": 1}, {"k": 1}),
    ({"type": "map", "values": "bytes"}, {"type": "map", "values": decimal(6, 2)}, {"k": b"\1"},
     {"k": Decimal("0.01")}),
    (record({"name": "t", "type": "long"}, {"name": "n", "type": "long"}, name="In"),
     record({"name": "n", "type": "long"}, {"name": "t", "type": MILLIS}, name="In"), {"t": MS, "n": MS},
     {"t": AT, "n": MS}),
    # A name that is used again.
    (record({"name": "a", "type": stored("fixed")}, {"name": "b", "type": ["null", "F"]}, name="In"),
     record({"name": "a", "type": decimal(6, 2, "fixed")}, {"name": "b", "type": ["null", "F"]}, name="In"),
     {"a": b"\0\0\1", "b": b"\0\0\2"}, {"a": Decimal("0.01"), "b": Decimal("0.02")}),
    # A name that one place reads as it is, and another as a decimal.
    (record({"name": "a", "type": stored("fixed")}, {"name": "b", "type": "F"}, name="In"),
     record({"name": "a", "type": stored("fixed")},
            {"name": "b", "type": {**decimal(6, 2, "fixed"), "name": "G", "aliases": ["F"]}}, name="In"),
     {"a": b"\0\0\1", "b": b"\0\0\2"}, {"a": b"\0\0\1", "b": Decimal("0.02")}),
    # Fields of one name in two records.
    (record({"name": "t", "type": "long"}, {"name": "r", "type": one_field("B", "long")}, name="A"),
     record({"name": "t", "type": "long"}, {"name": "r", "type": one_field("B", MILLIS)}, name="A"),
     {"t": MS, "r": {"t": MS}}, {"t": MS, "r": {"t": AT}}),
    # An alias.
    (record({"name": "t", "type": "long"}, {"name": "u", "type": MILLIS}, name="A"),
     record({"name": "at", "aliases": ["t"], "type": MILLIS}, {"name": "u", "type": MILLIS}, name="A"),
     {"t": MS, "u": MS}, {"at": AT, "u": AT}),
    # Neither of them has one, beside one that has.
    (["null", "int", "long"], ["null", "long"], 7, 7),
    ("long", "float", 7, 7.0),
    ("bytes", "string", b"x", "x"),
    ("string", "bytes", "x", b"x"),
]  # fmt: skip


@pytest.mark.parametrize(("writer", "reader", "raw", "value"), CASES)
def test_the_stored_number_has_the_type_of_the_reader(writer: Any, reader: Any, raw: object, value: object) -> None:
    found = read(writer, reader, raw)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("writer", "reader", "raw"),
    [
        (decimal(6, 2), decimal(6, 3), b"\x7b"),
        (decimal(6, 2, "fixed"), decimal(6, 0, "fixed"), b"\0\0\x7b"),
        (DATE, MILLIS, 1),
        (TIME_MICROS, MICROS, 1),
        (DATE, TIME, 1),
        (MILLIS, DATE, 1),
        ("long", DATE, 1),
        ("int", decimal(6, 2), 1),
    ],
)
def test_types_that_do_not_match_are_another_schema(writer: Any, reader: Any, raw: object) -> None:
    """The stored number would be another value."""
    with pytest.raises(UnreadableError, match=OTHER_SCHEMA):
        read(writer, reader, raw)


def test_a_number_with_more_digits_than_the_readers_unit_is_not_cut() -> None:
    with pytest.raises(UnreadableError, match="bad-value"):
        read(NANOS, MICROS, 1)


@pytest.mark.parametrize("precision", [39, 64])
def test_a_decimal_that_no_column_holds_is_named_with_its_remedy(precision: int) -> None:
    schema = record({"name": "in", "type": record({"name": "price", "type": decimal(precision, 2)}, name="In")})
    with pytest.raises(SchemaError) as raised:
        columns_of(form(schema))
    assert f"field in.price is a decimal of {precision} digits" in raised.value.message
    assert "set into='name TYPE, …'" in raised.value.message
    assert avro_columns(record({"name": "x", "type": decimal(38, 2)})) == {"x": "DECIMAL(38, 2)"}
