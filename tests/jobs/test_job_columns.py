"""Columns from schemas that others keep: Avro, JSON Schema, Spark's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    DecimalType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)  # fmt: skip

from spark_streams.connector.errors import ConfigError
from spark_streams.jobs.job_columns import JobColumns

ORDER = {
    "type": "record", "name": "Order", "namespace": "shop.v1",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": ["null", "string"], "default": None},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}},
        {"name": "at", "type": [{"type": "long", "logicalType": "timestamp-micros"}, "null"]},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
        {"name": "count", "type": ["int", "long"]},
        {"name": "weight", "type": ["null", "float", "double"]},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "SENT"]}},
        {"name": "before", "type": "State"},
        {"name": "key", "type": {"type": "fixed", "name": "Key", "size": 16}},
        {"name": "uuid", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}},
        {"name": "notes", "type": {"type": "map", "values": "double"}},
        {"name": "to", "type": {"type": "record", "name": "Address", "fields": [
            {"name": "city", "type": "string"}, {"name": "states", "type": {"type": "array", "items": "shop.v1.State"}},
        ]}},
    ],
}  # fmt: skip


def columns(folder: Path, kind: str, schema: Any, **given: str) -> dict[str, str]:
    file = folder / "schema"
    file.write_text(schema if isinstance(schema, str) else json.dumps(schema))
    return dict(JobColumns.parse({"schema": {kind: str(file)}, "columns": given}).types)


def test_an_avro_record(tmp_path: Path) -> None:
    assert columns(tmp_path, "avro", ORDER) == {
        "id": "BIGINT", "customer": "STRING", "amount": "DECIMAL(12, 2)", "at": "TIMESTAMP", "day": "DATE",
        "local": "TIMESTAMP_NTZ", "count": "BIGINT", "weight": "DOUBLE", "state": "STRING", "before": "STRING",
        "key": "BINARY", "uuid": "STRING", "tags": "ARRAY<STRING>", "notes": "MAP<STRING, DOUBLE>",
        "to": "STRUCT<`city`: STRING, `states`: ARRAY<STRING>>",
    }  # fmt: skip


def record(kind: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": "x", "type": kind}]}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (record(["string", "int"]), "field x is a union of string, int, which no single type can hold: set"),
        (record("null"), "field x is always null: set its type in"),
        (record(["null", "R"]), "field x: type R contains itself"),
        (
            record({"type": "record", "name": "T", "fields": [{"name": "t", "type": ["null", "T"]}]}),
            "field x.t: type T contains itself",
        ),
        (record("nowhere.T"), "field x: type 'nowhere.T' is neither Avro's nor defined in this file"),
        ({"type": "array", "items": "int"}, "the schema is array, but columns are the fields of a record"),
        ({"type": "record", "name": "R"}, "is not a valid schema: KeyError 'fields'"),
        ("{", "cannot be read as JSON"),
    ],
)
def test_what_no_column_can_be_is_refused_by_name(tmp_path: Path, schema: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as told:
        columns(tmp_path, "avro", schema)
    assert "schema.avro: " in str(told.value)


def test_columns_say_what_the_schema_does_not(tmp_path: Path) -> None:
    schema = record(["string", "int"])
    schema["fields"].append({"name": "y", "type": "int"})
    assert columns(tmp_path, "avro", schema, x="STRING", z="DATE") == {"y": "INT", "x": "STRING", "z": "DATE"}


def test_a_json_schema(tmp_path: Path) -> None:
    schema = {
        "properties": {
            "n": {"type": "integer"}, "x": {"type": ["number", "null"]}, "ok": {"type": "boolean"},
            "at": {"type": "string", "format": "date-time"}, "day": {"type": "string", "format": "date"},
            "state": {"enum": ["a", "b"]}, "tags": {"type": "array", "items": {"type": "string"}},
            "to": {"type": "object", "properties": {"city": {"type": "string"}}},
            "more": {"type": "object", "additionalProperties": {"type": "number"}},
        }
    }  # fmt: skip
    assert columns(tmp_path, "json_schema", schema) == {
        "n": "BIGINT", "x": "DOUBLE", "ok": "BOOLEAN", "at": "TIMESTAMP", "day": "DATE", "state": "STRING",
        "tags": "ARRAY<STRING>", "to": "STRUCT<`city`: STRING>", "more": "MAP<STRING, DOUBLE>",
    }  # fmt: skip
    for wrong, message in (
        ({"oneOf": [{}]}, "property x is defined by oneOf: set its type in"),
        ({"type": ["string", "integer"]}, "property x has no single type"),
        ({"type": "object"}, "property x is an object that does not define its content"),
        ({}, "property x has no single type for a column"),
    ):
        with pytest.raises(ConfigError, match=message):
            columns(tmp_path, "json_schema", {"properties": {"x": wrong}})
    with pytest.raises(ConfigError, match="the schema has no properties"):
        columns(tmp_path, "json_schema", {"type": "string"})


def test_what_spark_says_of_a_frame(tmp_path: Path) -> None:
    schema = StructType([
        StructField("n", IntegerType()), StructField("d", DecimalType(10, 2)), StructField("t", TimestampNTZType()),
        StructField("a b", ArrayType(StructType([StructField("x`y", StringType())]))),
        StructField("m", MapType(StringType(), IntegerType())),
    ])  # fmt: skip
    assert columns(tmp_path, "json", schema.json()) == {
        "n": "INT", "d": "DECIMAL(10,2)", "t": "TIMESTAMP_NTZ", "a b": "ARRAY<STRUCT<`x``y`: STRING>>",
        "m": "MAP<STRING, INT>",
    }  # fmt: skip
    with pytest.raises(ConfigError, match="is not a valid schema"):
        columns(tmp_path, "json", {"type": "record"})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, r"columns is missing \(or \[schema\]\)"),
        ({"schema": {"ddl": ""}}, "schema.ddl is empty"),
        ({"schema": {"ddl": "a INT", "avro": "x"}}, r"\[schema\] has ddl and avro: give one of them"),
        ({"schema": {"ddl": "a INT"}, "columns": {"b": "INT"}}, r"\[columns\] and schema.ddl contradict each other"),
        ({"schema": {"avro": "none.avsc"}}, "schema.avro: there is no file 'none.avsc'"),
        ({"columns": {"a": 1}}, "columns.a must be an SQL type, not 1"),
    ],
)
def test_what_is_wrong_is_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        JobColumns.parse(config)
