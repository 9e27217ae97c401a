"""Avro by the package fastavro: the writer's schema, resolved to the reader's by the rules of the library.

fastavro's own readers of decimals round to the schema's precision, and those of times of day and nanoseconds lose
digits. So decimals have a reader here, and other logical types than those in _KEPT are read as what they are stored as.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from spark_streams.model.untyped import Json
from spark_streams.schemas.exact import EXACT
from spark_streams.schemas.reasons import BAD_VALUE, OTHER_SCHEMA, UnreadableError, library
from spark_streams.schemas.registry import Schema

OUR_DECIMAL = "rstream-decimal"  # fastavro looks a reader up by the type and this name
EPOCH, LOCAL_EPOCH = datetime(1970, 1, 1, tzinfo=UTC), datetime(1970, 1, 1)
# By type and logical type: a default, which is JSON, as a value. fastavro takes the JSON.
_KEPT: dict[tuple[str, str], Callable[[int], date]] = {
    ("int", "date"): lambda days: date(1970, 1, 1) + timedelta(days),
    ("long", "timestamp-millis"): lambda ms: EPOCH + timedelta(milliseconds=ms),
    ("long", "timestamp-micros"): lambda us: EPOCH + timedelta(microseconds=us),
    ("long", "local-timestamp-millis"): lambda ms: LOCAL_EPOCH + timedelta(milliseconds=ms),
    ("long", "local-timestamp-micros"): lambda us: LOCAL_EPOCH + timedelta(microseconds=us),
}


class AvroReader:
    """Reads values as the reader's schema; without one, as their own."""

    def __init__(self, reader: Schema | None) -> None:
        """Raise UnsupportedError if fastavro is missing, ValueError or others if the schema is not valid."""
        self._fastavro = library("fastavro")
        readers = library("fastavro.read").LOGICAL_READERS
        readers.update({f"{kind}-{OUR_DECIMAL}": _decimal for kind in ("bytes", "fixed")})
        self._mismatch = library("fastavro.read").SchemaResolutionError
        self._reader = None if reader is None else parsed(reader)[0]

    def reading(self, writer: Schema, indexes: tuple[int, ...]) -> Callable[[bytes], Any]:
        """Return the function that reads values of this schema. It raises UnreadableError."""
        schema, reader, mismatch = parsed(writer)[0], self._reader, self._mismatch
        read = self._fastavro.schemaless_reader

        def read_value(body: bytes) -> Any:
            file = io.BytesIO(body)
            try:
                value = read(file, schema, reader)
            except mismatch:
                raise UnreadableError(OTHER_SCHEMA) from None
            if file.read(1):
                raise UnreadableError(BAD_VALUE)
            return value

        return read_value


def parsed(schema: Schema) -> tuple[Json, dict[str, Json]]:
    """Return a schema as fastavro takes it, and the named types in it by name. Defaults are values."""
    parse, named = library("fastavro").parse_schema, dict[str, Json]()
    for reference in schema.all_references():
        parse(_with_our_types(json.loads(reference.text)), named)
    content = parse(_with_our_types(json.loads(schema.text)), named)
    for one in (content, *named.values()):
        _convert_defaults(one, named)
    return content, named


def _with_our_types(schema: Json) -> Json:
    """Return a schema whose logical types are only those that are read here, or exactly by fastavro."""
    if isinstance(schema, list):
        return [_with_our_types(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    changed = dict(schema)
    kind, logical = changed.get("type"), changed.pop("logicalType", None)
    if logical == "decimal" and kind in ("bytes", "fixed"):
        changed["logicalType"] = OUR_DECIMAL
    elif isinstance(kind, str) and (kind, logical) in _KEPT:
        changed["logicalType"] = logical
    for key in ("type", "items", "values"):
        if key in changed:
            changed[key] = _with_our_types(changed[key])
    if kind == "record":
        changed["fields"] = [{**field, "type": _with_our_types(field["type"])} for field in changed["fields"]]
    return changed


def _decimal(data: bytes, writer: Mapping[str, Json], _reader: Json = None) -> Decimal:
    return EXACT.scaleb(Decimal(int.from_bytes(data, "big", signed=True)), -writer.get("scale", 0))


def _convert_defaults(schema: Json, named: Mapping[str, Json]) -> None:
    """Replace the defaults of a parsed schema, which are JSON, by values as they are read."""
    if isinstance(schema, list):
        for branch in schema:
            _convert_defaults(branch, named)
    elif isinstance(schema, dict):
        for field in schema.get("fields", ()):
            if "default" in field:
                field["default"] = _default(field["default"], field["type"], named)
            _convert_defaults(field["type"], named)
        for key in ("items", "values", "type"):
            _convert_defaults(schema.get(key), named)


def _default(value: Json, schema: Json, named: Mapping[str, Json]) -> Any:
    """Return a default as a value. What is converted already stays."""
    if isinstance(schema, list):  # of the first branch
        return _default(value, schema[0], named)
    if isinstance(schema, str):
        if schema in named:
            return _default(value, named[schema], named)
        return value.encode("latin-1") if schema == "bytes" and isinstance(value, str) else value
    kind, logical = schema["type"], schema.get("logicalType")
    if kind in ("bytes", "fixed") and isinstance(value, str):
        data = value.encode("latin-1")
        return _decimal(data, schema) if logical == OUR_DECIMAL else data
    if type(value) is int and (kind, logical) in _KEPT:
        return _KEPT[kind, logical](value)
    if kind == "array":
        return [_default(part, schema["items"], named) for part in value]
    if kind == "map":
        return {key: _default(part, schema["values"], named) for key, part in value.items()}
    if kind == "record":
        types = {field["name"]: field["type"] for field in schema["fields"]}
        return {name: _default(part, types[name], named) for name, part in value.items() if name in types}
    return value if isinstance(kind, str) else _default(value, kind, named)
