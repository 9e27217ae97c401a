"""Avro by the package fastavro: the writer's schema, resolved to the reader's by the rules of the library.
It gets only bytes that avro_walk.py has looked at.

fastavro's own readers of decimals round to the schema's precision, those of times of day and nanoseconds lose digits,
and all of them take the writer's logical type where the reader's counts. avro_logical.py has the readers used here.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from typing import Any

from spark_streams.base.untyped import Json
from spark_streams.connector.schemas.avro_logical import (
    KEPT,
    OUR_DECIMAL,
    ReaderTypes,
    decimal_of,
    for_fastavro,
    readers,
)
from spark_streams.connector.schemas.avro_walk import AvroWalk, read_fields
from spark_streams.connector.schemas.reasons import BAD_VALUE, OTHER_SCHEMA, UnreadableError, library
from spark_streams.connector.schemas.registry import Schema


class AvroReader:
    """Reads values as the reader's schema; without one, as their own."""

    def __init__(self, reader: Schema | None) -> None:
        """Raise UnsupportedError if fastavro is missing, ValueError or others if the schema is not valid."""
        self._fastavro = library("fastavro")
        library("fastavro.read").LOGICAL_READERS.update(readers())
        self._mismatch = library("fastavro.read").SchemaResolutionError
        self._reader: Json = None
        self._named: dict[str, Json] = {}
        if reader is not None:
            self._reader, self._named = parsed(reader)
        texts = [] if reader is None else [reader.text, *(one.text for one in reader.all_references())]
        self._types = ReaderTypes(map(json.loads, texts))

    def reading(self, writer: Schema, indexes: tuple[int, ...]) -> Callable[[bytes], Any]:
        """Return the function that reads values of this schema. It raises UnreadableError."""
        reader, mismatch = self._reader, self._mismatch
        schema, named = parsed(writer)
        if schema == reader and named == self._named:
            reader = None  # nothing to resolve, in half the time
        elif reader is not None:
            schema, named = parsed(writer, self._types)
        end_of, read = AvroWalk(schema, named, read_fields(self._named)).end_of, self._fastavro.schemaless_reader

        def read_value(body: bytes) -> Any:
            end = end_of(body)
            try:
                value = read(io.BytesIO(body), schema, reader)
            except mismatch:
                raise UnreadableError(OTHER_SCHEMA) from None
            if end != len(body):
                raise UnreadableError(BAD_VALUE)
            return value

        return read_value


def parsed(schema: Schema, reader: ReaderTypes | None = None) -> tuple[Json, dict[str, Json]]:
    """Return a schema as fastavro takes it, and the named types in it by name. Defaults are values.

    reader: as `for_fastavro` takes it.
    """
    parse, named = library("fastavro").parse_schema, dict[str, Json]()
    for reference in schema.all_references():
        parse(for_fastavro(json.loads(reference.text), reader), named)
    content = parse(for_fastavro(json.loads(schema.text), reader), named)
    for one in (content, *named.values()):
        _convert_defaults(one, named)
    return content, named


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
        return decimal_of(data, schema) if logical == OUR_DECIMAL else data
    if type(value) is int and (kind, logical) in KEPT:
        return KEPT[kind, logical](value)
    if kind == "array":
        return [_default(part, schema["items"], named) for part in value]
    if kind == "map":
        return {key: _default(part, schema["values"], named) for key, part in value.items()}
    if kind == "record":
        types = {field["name"]: field["type"] for field in schema["fields"]}
        return {name: _default(part, types[name], named) for name, part in value.items() if name in types}
    return value if isinstance(kind, str) else _default(value, kind, named)
