"""Avro values become the right values of Spark's types, or a reason."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from spark_streams.connector.errors import DecodeError, SchemaError
from spark_streams.connector.schemas.avro import AvroReader
from spark_streams.connector.schemas.decoder import Decoder
from spark_streams.connector.schemas.payload_columns import columns_of, decode_array
from spark_streams.connector.schemas.payload_format import PayloadFormat
from spark_streams.connector.schemas.reasons import OTHER_SCHEMA, UnreadableError
from spark_streams.connector.schemas.schema_columns import avro_columns
from spark_streams.connector.schemas.schema_registry import Schema
from tests.connector.schemas.avro_values import FIRST, READER, encoded, form, record
from tests.connector.schemas.ddl import struct_of

DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}
FIXED = {"type": "fixed", "name": "F", "size": 3, "logicalType": "decimal", "precision": 6, "scale": 2}
ENUM = {"type": "enum", "name": "E", "symbols": ["NEW", "PAID"]}
INNER = record({"name": "a", "type": "int"}, {"name": "b", "type": ["null", "string"]}, name="Inner")
MOMENT = datetime(2026, 1, 31, 23, 59, 59, 123456, UTC)


def of_type(kind: str, logical: str) -> dict[str, str]:
    return {"type": kind, "logicalType": logical}


def decoded(values: list[bytes | None], given: PayloadFormat, into: str) -> list[tuple[Any, str | None]]:
    result = decode_array(pa.array(values, pa.binary()), given, struct_of(into))
    return [(one["value"], one["reason"]) for one in result.to_pylist(maps_as_pydicts="strict")]


def into_of(schema: Any) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in avro_columns(schema).items())


@pytest.mark.parametrize(
    ("kind", "raw", "value", "column"),
    [
        ("boolean", True, True, "BOOLEAN"),
        ("int", -(2**31), -(2**31), "INT"),
        ("long", 2**63 - 1, 2**63 - 1, "BIGINT"),
        ("float", 0.5, 0.5, "FLOAT"),
        ("double", 0.1, 0.1, "DOUBLE"),
        ("string", "Grüße", "Grüße", "STRING"),
        ("bytes", b"\x00\xff", b"\x00\xff", "BINARY"),
        (ENUM, "PAID", "PAID", "STRING"),
        ({"type": "fixed", "name": "X", "size": 2}, b"\x00\xff", b"\x00\xff", "BINARY"),
        (DECIMAL, Decimal("-1234.56"), Decimal("-1234.56"), "DECIMAL(6, 2)"),
        (FIXED, Decimal("1234.50"), Decimal("1234.50"), "DECIMAL(6, 2)"),
        (of_type("int", "date"), date(1969, 12, 31), date(1969, 12, 31), "DATE"),
        (of_type("long", "timestamp-micros"), MOMENT, MOMENT, "TIMESTAMP"),
        (of_type("long", "timestamp-millis"), -1, datetime(1969, 12, 31, 23, 59, 59, 999000, UTC), "TIMESTAMP"),
        (of_type("long", "local-timestamp-micros"), 1, datetime(1970, 1, 1, 0, 0, 0, 1), "TIMESTAMP_NTZ"),
        (of_type("long", "local-timestamp-millis"), 1, datetime(1970, 1, 1, 0, 0, 0, 1000), "TIMESTAMP_NTZ"),
        (of_type("int", "time-millis"), 86_399_999, 86_399_999, "INT"),
        (of_type("long", "timestamp-nanos"), 1_000_000_001, 1_000_000_001, "BIGINT"),
        (of_type("string", "uuid"), "no uuid", "no uuid", "STRING"),
        (["null", "string"], None, None, "STRING"),
        (["null", "string"], "x", "x", "STRING"),
        (["int", "long"], 2**40, 2**40, "BIGINT"),
        (INNER, {"a": 1, "b": None}, {"a": 1, "b": None}, "STRUCT<`a`: INT, `b`: STRING>"),
        ({"type": "array", "items": ["null", DECIMAL]}, [Decimal("1.20"), None], [Decimal("1.20"), None],
         "ARRAY<DECIMAL(6, 2)>"),
        ({"type": "map", "values": INNER}, {"k": {"a": 2, "b": "y"}}, {"k": {"a": 2, "b": "y"}},
         "MAP<STRING, STRUCT<`a`: INT, `b`: STRING>>"),
    ],
)  # fmt: skip
def test_a_value_of_each_type_arrives_as_it_was(kind: Any, raw: object, value: object, column: str) -> None:
    schema = record({"name": "x", "type": kind})
    assert avro_columns(schema) == {"x": column}
    found = decoded([encoded(schema, {"x": raw})], form(schema), f"x {column}")
    assert found == [({"x": value}, None)]


@pytest.mark.parametrize(
    ("kind", "raw", "column"),
    [
        ("long", 2**31, "INT"),
        ("int", 1, "STRING"),
        ("int", 1, "BOOLEAN"),
        ("boolean", True, "INT"),
        ("double", 1.5, "INT"),
        ("double", 0.1, "FLOAT"),
        ("double", 1e300, "FLOAT"),
        ("long", 2**53 + 1, "DOUBLE"),
        ("string", "1", "INT"),
        ("string", "x", "BINARY"),
        ("bytes", b"x", "STRING"),
        ("string", "2026-01-31", "DATE"),
        ("long", 1, "TIMESTAMP"),
        (of_type("int", "date"), 1, "TIMESTAMP"),
        (of_type("long", "timestamp-micros"), 1, "DATE"),
        (of_type("long", "local-timestamp-micros"), 1, "TIMESTAMP"),
        (of_type("long", "timestamp-micros"), 1, "TIMESTAMP_NTZ"),
        (of_type("long", "timestamp-micros"), 2**62, "TIMESTAMP"),  # after the year 9999
        (of_type("int", "date"), -(2**31), "DATE"),
        (DECIMAL, Decimal("1.25"), "DECIMAL(6, 1)"),
        (DECIMAL, Decimal("1234.56"), "DECIMAL(5, 2)"),
        (["null", "int"], None, "INT NOT NULL"),
        (INNER, {"a": 1, "b": None}, "ARRAY<INT>"),
        ({"type": "array", "items": "long"}, [1, 2**40], "ARRAY<INT>"),
    ],
)
def test_a_value_that_does_not_fit_is_not_changed(kind: Any, raw: object, column: str) -> None:
    """Beside it, a value that fits."""
    schema = record({"name": "x", "type": kind})
    assert decoded([encoded(schema, {"x": raw}), None], form(schema), f"x {column}") == [
        (None, "bad-value"),
        (None, None),
    ]


def test_a_decimal_with_more_digits_than_its_schema_is_not_rounded() -> None:
    """fastavro's own reader gives 1.23E+4 for 12345.6 with three digits."""
    schema = record({"name": "x", "type": {**DECIMAL, "precision": 3, "scale": 1}})
    raw = record({"name": "x", "type": "bytes"})
    value = encoded(raw, {"x": (123456).to_bytes(3, "big")})
    assert decoded([value], form(schema), "x DECIMAL(3, 1)") == [(None, "bad-value")]
    assert decoded([value], form(schema), "x DECIMAL(10, 1)") == [({"x": Decimal("12345.6")}, None)]
    long = encoded(raw, {"x": (10**40).to_bytes(18, "big")})
    assert decoded([long], form(schema), "x DECIMAL(38, 1)") == [(None, "bad-value")]


def test_bytes_that_are_no_value() -> None:
    whole = encoded(FIRST, {"customer": "ann", "amount": 7})
    found = decoded([whole, whole[:-1], whole + b"\0", b"", b"\x02\xff\x02"], form(FIRST), into_of(FIRST))
    assert found[0] == ({"customer": "ann", "amount": 7}, None)
    assert found[1:] == [(None, "bad-value")] * 4


def test_a_default_of_the_reader_has_the_type_of_its_field() -> None:
    """fastavro returns it as it is in the JSON."""
    reader = record(
        {"name": "customer", "type": "string"},
        {"name": "d", "type": DECIMAL, "default": "\x7b"},
        {"name": "b", "type": "bytes", "default": "\u00ff"},
        {"name": "t", "type": of_type("long", "timestamp-millis"), "default": 1},
        {"name": "n", "type": ["null", of_type("int", "date")], "default": None},
        {"name": "u", "type": [of_type("int", "date"), "null"], "default": 1},
        {"name": "i", "type": INNER, "default": {"a": 1, "b": None}},
        {"name": "again", "type": {"type": "array", "items": "Inner"}, "default": [{"a": 2, "b": None}]},
        {"name": "m", "type": {"type": "map", "values": "bytes"}, "default": {"k": "\u00ff"}},
    )
    decoder = Decoder(form(reader))
    read = decoder._reader.reading(type(decoder._given)(json.dumps(FIRST)), ())
    value = read(encoded(FIRST, {"customer": "ann", "amount": 7}))
    assert value == {
        "customer": "ann", "d": Decimal("1.23"), "b": b"\xff", "t": datetime(1970, 1, 1, 0, 0, 0, 1000, UTC), "n": None,
        "u": date(1970, 1, 2), "i": {"a": 1, "b": None}, "again": [{"a": 2, "b": None}], "m": {"k": b"\xff"},
    }  # fmt: skip


def test_the_framing_is_skipped_if_there_is_one() -> None:
    given = form(FIRST, framed=True)
    whole = encoded(FIRST, {"customer": "ann", "amount": 7}, 5)
    found = decoded([whole, b"\1" + whole[1:], whole[:4], b""], given, into_of(FIRST))
    assert [reason for _, reason in found] == [None, "bad-framing", "bad-framing", "bad-framing"]
    assert found[0][0] == {"customer": "ann", "amount": 7}


def test_without_a_column_for_reasons_the_first_wrong_value_stops_the_query() -> None:
    with pytest.raises(DecodeError, match="column 'payload' cannot be decoded: bad-value; set reason="):
        decode_array(pa.array([b"\xff"]), form(FIRST), struct_of(into_of(FIRST)), "payload")


def test_bytes_in_a_python_value_out() -> None:
    decoder = Decoder(form(READER))
    assert decoder.decode(encoded(READER, {"customer": "ann", "amount": 7, "currency": "EUR"}))["currency"] == "EUR"
    with pytest.raises(UnreadableError, match="bad-value"):
        decoder.decode(b"\xff")


# -- A logical type that another version of a schema adds, removes or changes: the stored number, as the reader has ----


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
