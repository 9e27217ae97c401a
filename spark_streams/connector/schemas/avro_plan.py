"""The plan of an Avro schema: the step of avro_steps.py that reads its values into a struct of Arrow.

A plan is stricter than avro_walk.py and fastavro: what it reads is what they read. Values that it marks as bad may
still be right, and are read by them, as are values of schemas without a plan. So a reason has one owner.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type

from spark_streams.base.untyped import Json
from spark_streams.connector.schemas import avro_steps
from spark_streams.connector.schemas.avro import KEPT, OWN, AvroRead, NamedTypes
from spark_streams.connector.schemas.avro_steps import Step
from spark_streams.connector.schemas.avro_walk import bare_schema, kind_of, last_part
from spark_streams.connector.schemas.fit import UNFIT, fitter
from spark_streams.connector.schemas.reasons import FIRST_STEPS, STEPS_OF_A_BYTE

_MOST_PLANS = 1_000  # of a process
_MOST_PARTS, _DEEPEST = 1_000, 50  # of a plan
_RECORDS = ("record", "error")
_DAYS = (-719_162, 2_932_896)  # of the years 1 to 9999, since 1970
_MICROS = (_DAYS[0] * 86_400_000_000, (_DAYS[1] + 1) * 86_400_000_000 - 1)
_MILLIS = (_MICROS[0] // 1000, _MICROS[1] // 1000)
# By what a value means: its own type in Arrow.
_NATURAL = {
    "null": pa.null(), "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(),
    "double": pa.float64(), "bytes": pa.binary(), "fixed": pa.binary(), "string": pa.string(), "enum": pa.string(),
    "date": pa.date32(), "timestamp": pa.timestamp("us", "UTC"), "local-timestamp": pa.timestamp("us"),
    "decimal": pa.decimal128(38, 0),
}  # fmt: skip
_UNWANTED = {"array": pa.list_(pa.null()), "map": pa.map_(pa.string(), pa.null())}


class _Part(NamedTuple):
    read: Step
    least: int  # bytes that a value has
    debt: int  # most steps that avro_walk.py may count for a value, less those that its bytes allow


class NoPlanError(Exception):
    """A schema, or its columns, need the path value by value."""


@functools.lru_cache(_MOST_PLANS)
def plan_of(read: AvroRead, struct: pa.StructType) -> Step | None:
    """Return what reads values of a schema into these structs, None if they have no plan."""
    try:
        part = _Compiler(read.types).part(read.writer, read.reader, struct, 0)
    except NoPlanError:
        return None
    return part.read if part.debt <= FIRST_STEPS else None


class _Compiler:
    """In all methods, reader: None if the value is read as its writer's type; into: None if no column wants it."""

    def __init__(self, types: NamedTypes) -> None:
        self._types = types
        self._parts = 0

    def part(self, writer: Json, reader: Json, into: pa.DataType | None, depth: int) -> _Part:
        self._parts += 1
        if self._parts > _MOST_PARTS or depth > _DEEPEST:  # also of a type that contains itself
            raise NoPlanError
        writer = _definition(writer, self._types.writer)
        if isinstance(writer, list):
            return self._union(writer, reader, into, depth)
        wire = kind_of(writer)
        reader = _definition(_branch_for(wire, reader), self._types.reader)
        if reader is not None and not _is_read_as(wire, writer, reader):
            raise NoPlanError
        if wire in _RECORDS:
            return self._record(writer, reader, into, depth + 1)
        if wire in ("array", "map"):
            return self._blocks(wire, writer, reader, into, depth + 1)
        size = writer["size"] if wire == "fixed" else _LEAST.get(wire, 1)
        read = _leaf(wire, writer, writer if reader is None else reader, into)
        return _Part(avro_steps.unwanted(read) if into is None else read, size, -STEPS_OF_A_BYTE * size)

    def _union(self, branches: list[Json], reader: Json, into: pa.DataType | None, depth: int) -> _Part:
        kind = pa.null() if into is None else into
        takes_null = reader is None or "null" in (reader if isinstance(reader, list) else [reader])
        parts = [None if branch == "null" else self.part(branch, reader, into, depth + 1) for branch in branches]
        least, debt = min(one.least if one else 0 for one in parts), max(one.debt if one else 0 for one in parts)
        step = avro_steps.union([one and one.read for one in parts], kind, takes_null)
        return _Part(step, 1 + least, debt - STEPS_OF_A_BYTE)

    def _record(self, writer: Json, reader: Json, into: pa.DataType | None, depth: int) -> _Part:
        columns = _columns(into)
        not_written = {} if reader is None else {field["name"]: field for field in reader["fields"]}
        aliases = {alias: field for field in not_written.values() for alias in field.get("aliases", ())}
        steps: list[tuple[Step, int | None]] = []
        parts: list[_Part] = []
        for field in writer["fields"]:
            name, meant = field["name"], None
            if reader is not None:
                found = not_written.get(name, aliases.get(name, {}))
                name, meant = found.get("name"), found.get("type")
                if found and not_written.pop(name, None) is None:  # it is written twice
                    raise NoPlanError
            place, column = columns.pop(name, (None, None))
            parts.append(self.part(field["type"], meant, column, depth))
            steps.append((parts[-1].read, place))
        if any("default" not in field for field in not_written.values()):
            raise NoPlanError
        added = {
            place: _constant(not_written.get(name, {}).get("default"), column)
            for name, (place, column) in columns.items()
        }
        counted = max(len(parts), self._types.read_fields.get(last_part(writer["name"]), 0))
        return _Part(
            avro_steps.record(steps, added, into),
            sum(part.least for part in parts),
            sum(part.debt for part in parts) + counted,
        )

    def _blocks(self, wire: str, writer: Json, reader: Json, into: pa.DataType | None, depth: int) -> _Part:
        key = "items" if wire == "array" else "values"
        inner = None if into is None else _part_of(into, wire)
        one = self.part(writer[key], reader and reader[key], inner, depth)
        if wire == "map":  # its keys are texts
            one = _Part(one.read, one.least + 1, one.debt - STEPS_OF_A_BYTE)
        if one.least < 1 or one.debt > 0:  # items without bytes, or with too many fields for their bytes, are counted
            raise NoPlanError
        step = avro_steps.array if wire == "array" else avro_steps.mapping
        read = step(one.read, into) if into is not None else avro_steps.unwanted(step(one.read, _UNWANTED[wire]))
        return _Part(read, 1, -STEPS_OF_A_BYTE)


_KINDS = {*_NATURAL, *_RECORDS, "array", "map"}
_LEAST = {"null": 0, "float": 4, "double": 8}
_PROMOTED = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "bytes": ("string",),
}


def _definition(schema: Json, named: Mapping[str, Json]) -> Json:
    """Return a bare type: a name's."""
    schema = bare_schema(schema)
    while (name := kind_of(schema)) in named and name not in _KINDS:
        schema = bare_schema(named[name])
    return schema


def _branch_for(wire: str, reader: Json) -> Json:
    """Return the branch of the reader's union as which a type is read. Raises NoPlanError if it may be several."""
    if not isinstance(reader, list):
        return reader
    branches = [branch for branch in reader if (branch == "null") is (wire == "null")]
    if len(branches) != 1:
        raise NoPlanError
    return branches[0]


def _is_read_as(wire: str, writer: Json, reader: Json) -> bool:
    """Return whether the reader's type takes values of the writer's, if neither is a union."""
    meant = kind_of(reader)
    if wire != meant:
        return meant in _PROMOTED.get(wire, ())
    if wire in ("fixed", "enum", *_RECORDS):
        names = {last_part(reader["name"]), *reader.get("aliases", ())}
        if names.isdisjoint((writer["name"], last_part(writer["name"]))):
            return False
    return all(writer[key] == reader[key] for key in ("size", "symbols") if key in writer)


def _columns(into: pa.DataType | None) -> dict[str, tuple[int, pa.DataType]]:
    """Return place and type of the columns by name."""
    if into is None:
        return {}
    if not pa.types.is_struct(into) or not 0 < len(into) == len({one.name for one in into}):
        raise NoPlanError
    return {one.name: (place, one.type) for place, one in enumerate(into)}


def _part_of(into: pa.DataType, wire: str) -> pa.DataType:
    """Return the type of the items or values of a column."""
    if wire == "array" and pa.types.is_list(into):
        return into.value_type
    if wire == "map" and pa.types.is_map(into) and into.key_type == pa.string():
        return into.item_type
    raise NoPlanError


def _constant(value: Any, into: pa.DataType) -> pa.Scalar:
    """Return a default as a column holds it."""
    fit = fitter(from_arrow_type(into, prefer_timestamp_ntz=True))
    try:
        return pa.scalar(None if value is None else fit(value), into)
    except UNFIT:
        raise NoPlanError from None


def _leaf(wire: str, writer: Json, meant: Json, into: pa.DataType | None) -> Step:
    """Return the step of a type without parts. meant: the type as which it is read."""
    name, own = kind_of(meant), _logical(writer)
    logical, scale = _logical(meant), _scale(meant)
    if own and logical and (own, _scale(writer)) != (logical, scale):  # the stored number is another one
        raise NoPlanError
    is_time = (name, logical) in KEPT
    if is_time or logical == "decimal":
        name = logical.removesuffix("-millis").removesuffix("-micros")
    kind = _NATURAL[name] if into is None else into
    size = writer["size"] if wire == "fixed" else None
    if name == "null":
        return lambda lanes: pa.nulls(len(lanes), kind)
    if name == "decimal":
        is_held = pa.types.is_decimal128(kind) and (into is None or kind.scale == scale)
        if not is_held or (size or 0) > avro_steps.MOST_DECIMAL:
            raise NoPlanError
        return avro_steps.decimal(size, kind)
    if name in ("int", "long") and pa.types.is_signed_integer(kind):
        return avro_steps.integer(wire, kind, -(1 << kind.bit_width - 1), (1 << kind.bit_width - 1) - 1)
    if name in ("float", "double") and kind in (pa.float32(), pa.float64()):
        return avro_steps.floating(wire, kind)
    if kind != _NATURAL[name]:
        raise NoPlanError
    if is_time:
        is_millis = logical.endswith("-millis")
        bounds = _DAYS if name == "date" else _MILLIS if is_millis else _MICROS
        return avro_steps.integer(wire, kind, *bounds, 1000 if is_millis else 1)
    if name == "boolean":
        return avro_steps.boolean
    return avro_steps.enum(writer["symbols"]) if name == "enum" else avro_steps.data(size, name == "string")


def _logical(schema: Json) -> str:
    return schema.get(OWN, "") if isinstance(schema, dict) else ""


def _scale(schema: Json) -> int:
    return schema.get("scale", 0) if isinstance(schema, dict) else 0
