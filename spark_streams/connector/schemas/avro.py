"""Avro by the package fastavro: the writer's schema, resolved to the reader's by the rules of the library.
It gets only bytes that avro_walk.py has looked at.

fastavro's own readers of decimals round to the schema's precision, those of times of day and nanoseconds lose digits,
and all of them take the writer's logical type where the reader's counts. The readers used here do not.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

from spark_streams.base.untyped import Json
from spark_streams.connector.schemas.avro_walk import AvroWalk, read_fields
from spark_streams.connector.schemas.reasons import BAD_VALUE, EXACT, OTHER_SCHEMA, UnreadableError, library
from spark_streams.connector.schemas.schema_registry import Schema

# -- logical types: which become values of their own, and a stored number as another version's type --------------------

# By Avro's rules a value is what its writer stored, promoted to the reader's type; the reader's logical type says what
# it means. So a logical type that one version adds or removes changes no bytes. If both versions have one, their units
# may differ: the moment or the number stays, or the schemas do not match.
#
#   writer            reader              value                     writer            reader             value
#   long              timestamp-millis    moment of the number      timestamp-millis  timestamp-micros   the same moment
#   timestamp-millis  long                the stored number         date              timestamp-millis   other-schema
#   bytes             decimal             number of the bytes       decimal, scale 2  decimal, scale 3   other-schema

# fastavro looks a function up by a type and its logical type. These names are known here only.
OUR_DECIMAL = "rstream-decimal"
AS_READER = "rstream-as-reader"  # the function is told both versions
OWN = "rstream-own"  # the attribute with the schema's own logical type
EPOCH, LOCAL_EPOCH = datetime(1970, 1, 1, tzinfo=UTC), datetime(1970, 1, 1)
_LARGEST_DECIMAL = 256  # bits: more than a decimal of 76 digits has

# By type and logical type: a stored number as a value. Other logical types are read as what they are stored as.
KEPT: dict[tuple[str, str], Callable[[int], date]] = {
    ("int", "date"): lambda days: date(1970, 1, 1) + timedelta(days),
    ("long", "timestamp-millis"): lambda ms: EPOCH + timedelta(milliseconds=ms),
    ("long", "timestamp-micros"): lambda us: EPOCH + timedelta(microseconds=us),
    ("long", "local-timestamp-millis"): lambda ms: LOCAL_EPOCH + timedelta(milliseconds=ms),
    ("long", "local-timestamp-micros"): lambda us: LOCAL_EPOCH + timedelta(microseconds=us),
}
_DECIMALS = (("bytes", "decimal"), ("fixed", "decimal"))
# By type and logical type: the name of the function that reads it.
_READ = {**{pair: pair[1] for pair in KEPT}, **dict.fromkeys(_DECIMALS, OUR_DECIMAL)}
# By type and logical type: what it counts, and its unit in nanoseconds.
_UNITS: dict[tuple[str, str], tuple[str, int]] = {
    ("int", "date"): ("days", 1),
    ("int", "time-millis"): ("time of day", 1_000_000),
    ("long", "time-micros"): ("time of day", 1_000),
    **{
        ("long", f"{local}timestamp-{unit}"): ("time since 1970", nanoseconds)
        for local in ("", "local-")
        for unit, nanoseconds in (("millis", 1_000_000), ("micros", 1_000), ("nanos", 1))
    },
}
_NAMELESS = ("null", "boolean", "int", "long", "float", "double", "bytes", "string", "array", "map")
_PROMOTED = {"int": {"int", "long"}, "long": {"long"}, "string": {"bytes"}, "bytes": {"bytes"}, "fixed": {"fixed"}}


class ReaderTypes:
    """What a reader's schema has, for the schemas of writers. kinds: types with a logical type that is read as a value;
    fields: the types of the fields of each name, or alias.
    """

    def __init__(self, schemas: Iterable[Json]) -> None:
        """schemas: the reader's, with those that it refers to, as JSON."""
        self.kinds: set[str] = set()
        self.fields: dict[str, list[Json]] = {}
        for schema in schemas:
            self._add(schema)

    def has_logical(self, kind: Json) -> bool:
        """Return whether a writer's type may be read as one with a logical type."""
        return isinstance(kind, str) and not self.kinds.isdisjoint(_PROMOTED.get(kind, ()))

    def _add(self, schema: Json) -> None:
        if isinstance(schema, list):
            for branch in schema:
                self._add(branch)
        elif isinstance(schema, dict):
            kind = schema.get("type")
            if isinstance(kind, str) and (kind, _logical(schema)) in _READ:
                self.kinds.add(kind)
            for key in ("type", "items", "values"):
                self._add(schema.get(key))
            for field in schema.get("fields", ()):
                for name in (field["name"], *field.get("aliases", ())):
                    self.fields.setdefault(name, []).append(field["type"])
                self._add(field["type"])


def for_fastavro(schema: Json, reader: ReaderTypes | None = None) -> Json:
    """Return a schema whose logical types are those that are read here, or exactly by fastavro.

    reader: of a writer's schema that another schema reads.
    """
    if isinstance(schema, list):
        return [for_fastavro(branch, reader) for branch in schema]
    if not isinstance(schema, dict):
        is_other = reader is not None and reader.has_logical(schema)
        return {"type": schema, "logicalType": AS_READER} if is_other else schema
    changed = dict(schema)
    kind, logical = schema.get("type"), _logical(schema)
    changed.pop("logicalType", None)
    if isinstance(kind, str):
        if (kind, logical) in _DECIMALS or (kind, logical) in _UNITS:
            changed[OWN] = logical
        if (kind, logical) in _READ:
            changed["logicalType"] = _READ[kind, logical]
    if reader is not None and (OWN in changed or reader.has_logical(kind)):
        changed["logicalType"] = AS_READER
    for key in ("type", "items", "values"):
        if key in changed and (key != "type" or not isinstance(kind, str)):
            changed[key] = for_fastavro(changed[key], reader)
    if kind in ("record", "error"):
        changed["fields"] = [_field(field, reader) for field in changed["fields"]]
    return changed


def _field(field: Mapping[str, Json], reader: ReaderTypes | None) -> Json:
    kind = field["type"]  # the reader does not matter if it reads the field as this type, or does not read it
    others = () if reader is None else reader.fields.get(field["name"], ())
    is_same = not _has_names(kind) and all(kind == one for one in others)
    return {**field, "type": for_fastavro(kind, None if is_same else reader)}


def _logical(schema: Mapping[str, Json]) -> str:
    """Return a logical type; what is no text is ignored."""
    logical = schema.get("logicalType")
    return logical if isinstance(logical, str) else ""


def _has_names(schema: Json) -> bool:
    """Return whether a type is, or has in it, one with a name: it may be used elsewhere, too."""
    if isinstance(schema, list):
        return any(map(_has_names, schema))
    if not isinstance(schema, dict):
        return schema not in _NAMELESS
    return "name" in schema or any(_has_names(schema[key]) for key in ("type", "items", "values") if key in schema)


def readers() -> dict[str, Callable[..., Any]]:
    """Return the functions that fastavro calls, by the names under which it looks for them."""
    ours: dict[str, Callable[..., Any]] = {f"{kind}-{OUR_DECIMAL}": decimal_of for kind in ("bytes", "fixed")}
    return ours | {f"{kind}-{AS_READER}": _as_reader for kind in _PROMOTED}


def decimal_of(data: bytes, schema: Mapping[str, Json], _reader: Json = None) -> Decimal:
    """Return the decimal that these bytes are. Raises UnreadableError if no decimal has so many digits."""
    number = int.from_bytes(data, "big", signed=True)
    if number.bit_length() > _LARGEST_DECIMAL:
        raise UnreadableError(BAD_VALUE)
    return EXACT.scaleb(Decimal(number), -schema.get("scale", 0))


def _as_reader(data: Any, writer: Mapping[str, Json], reader: Json) -> Any:
    """Return a stored value as the reader's type. Raises UnreadableError."""
    kind = reader["type"] if isinstance(reader, dict) else reader
    logical = reader.get(OWN, "") if isinstance(reader, dict) else ""
    if OWN in writer and logical:
        if (kind, logical) in KEPT:
            logical = logical.replace("-millis", "-micros")  # a moment has microseconds, whatever its version counts
        data = _in_unit(data, writer, {**reader, OWN: logical})
    if isinstance(data, str) and kind == "bytes":
        data = data.encode()
    if logical == "decimal":
        return decimal_of(data, reader)
    if (kind, logical) in KEPT:
        return KEPT[kind, logical](data)
    if kind in ("float", "double"):
        return float(data)
    return data.decode() if isinstance(data, bytes) and kind == "string" else data


def _in_unit(data: Any, writer: Mapping[str, Json], reader: Mapping[str, Json]) -> Any:
    """Return the stored number in the unit of the reader's logical type. Raises UnreadableError."""
    if writer[OWN] == "decimal" or reader[OWN] == "decimal":
        if writer[OWN] != reader[OWN] or writer.get("scale", 0) != reader.get("scale", 0):
            raise UnreadableError(OTHER_SCHEMA)
        return data
    (counted, unit), (reader_counts, reader_unit) = (_UNITS[one["type"], one[OWN]] for one in (writer, reader))
    if counted != reader_counts:
        raise UnreadableError(OTHER_SCHEMA)
    number, rest = divmod(data * unit, reader_unit)
    if rest:  # nothing is rounded
        raise UnreadableError(BAD_VALUE)
    return number


# -- reading -----------------------------------------------------------------------------------------------------------


class AvroReader:
    """Reads values as the reader's schema; without one, as their own."""

    def __init__(self, reader: Schema | None) -> None:
        """Raise UnsupportedError if fastavro is missing, ValueError or others if the schema is not valid."""
        library("fastavro.read").LOGICAL_READERS.update(readers())
        self._reader: Json = None
        self._named: dict[str, Json] = {}
        if reader is not None:
            self._reader, self._named = parsed(reader)
        texts = [] if reader is None else [reader.text, *(one.text for one in reader.references)]
        self._types = ReaderTypes(map(json.loads, texts))

    def reading(self, writer: Schema, indexes: tuple[int, ...]) -> AvroRead:
        """Return what reads values of this schema."""
        reader = self._reader
        schema, named = parsed(writer)
        if schema == reader and named == self._named:
            reader = None  # nothing to resolve, in half the time
        elif reader is not None:
            schema, named = parsed(writer, self._types)
        return AvroRead(schema, reader, NamedTypes(named, self._named, read_fields(self._named)))


class NamedTypes(NamedTuple):
    """Types by name, as `parsed` returns them."""

    writer: Mapping[str, Json]
    reader: Mapping[str, Json]
    read_fields: Mapping[str, int]  # as AvroWalk takes it


class AvroRead:
    """Reads values of one schema. reader: None if they are read as their own."""

    def __init__(self, writer: Json, reader: Json, types: NamedTypes) -> None:
        self.writer, self.reader, self.types = writer, reader, types
        self._end_of = AvroWalk(writer, types.writer, types.read_fields).end_of
        self._read = library("fastavro").schemaless_reader
        self._mismatch = library("fastavro.read").SchemaResolutionError

    def __call__(self, body: bytes) -> Any:
        """Return the value that these bytes are. Raises UnreadableError, or an error of fastavro."""
        end = self._end_of(body)
        try:
            value = self._read(io.BytesIO(body), self.writer, self.reader)
        except self._mismatch:
            raise UnreadableError(OTHER_SCHEMA) from None
        if end != len(body):
            raise UnreadableError(BAD_VALUE)
        return value


def parsed(schema: Schema, reader: ReaderTypes | None = None) -> tuple[Json, dict[str, Json]]:
    """Return a schema as fastavro takes it, and the named types in it by name. Defaults are values.

    reader: as `for_fastavro` takes it.
    """
    parse, named = library("fastavro").parse_schema, dict[str, Json]()
    for reference in schema.references:
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
