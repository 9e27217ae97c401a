"""Avro schemas and values of these tests."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro

from spark_streams.connector.schemas.payload_format import PayloadFormat

Schema = Any


def record(*fields: dict[str, Any], name: str = "Order") -> Schema:
    return {"type": "record", "name": name, "fields": list(fields)}


def encoded(schema: Schema, value: object, schema_id: int | None = None) -> bytes:
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(schema), value)
    return (b"" if schema_id is None else b"\0" + schema_id.to_bytes(4, "big")) + file.getvalue()


def form(schema: Schema, **more: Any) -> PayloadFormat:
    return PayloadFormat("avro", json.dumps(schema), **more)


FIRST = record({"name": "customer", "type": "string"}, {"name": "amount", "type": "int"})
SECOND = record({"name": "customer", "type": "string"}, {"name": "amount", "type": "long"},
                {"name": "note", "type": ["null", "string"], "default": None})  # fmt: skip
THIRD = record({"name": "buyer", "aliases": ["customer"], "type": "string"}, {"name": "amount", "type": "long"},
               {"name": "currency", "type": "string", "default": "EUR"})  # fmt: skip
VERSIONS = {1: FIRST, 2: SECOND, 3: THIRD}
READER = record(
    {"name": "customer", "aliases": ["buyer"], "type": "string"},
    {"name": "amount", "type": "long"},
    {"name": "currency", "type": "string", "default": "USD"},
)
