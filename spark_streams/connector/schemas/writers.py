"""Values of Spark as Avro, as JSON texts and as Protobuf messages, without rounding."""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Callable
from datetime import UTC, date, timedelta
from decimal import Decimal
from typing import Any

from pyspark.sql import types as T

from spark_streams.base.untyped import Json
from spark_streams.connector.errors import SchemaError
from spark_streams.connector.schemas.avro import EPOCH, LOCAL_EPOCH, OUR_DECIMAL, parsed
from spark_streams.connector.schemas.fit import (
    UNFIT,
    Fit,
    MisfitError,
    UnfitError,
    as_dict,
    as_list,
    exactly,
    fitter,
    pairs_of,
)
from spark_streams.connector.schemas.json_schema import JsonReader, parse, text_of
from spark_streams.connector.schemas.protobuf import TIMESTAMP, TYPES, ProtobufReader, is_map, is_wrapper
from spark_streams.connector.schemas.reasons import EXACT, UnreadableError, library
from spark_streams.connector.schemas.schema_registry import Schema

# -- Avro --------------------------------------------------------------------------------------------------------------

# The package fastavro writes. Each value is first made what Avro stores: the library's own writers of logical types
# lose digits.

_PRIMITIVE: dict[str, Fit] = {
    "boolean": fitter(T.BooleanType()),
    "int": fitter(T.IntegerType()),
    "long": fitter(T.LongType()),
    "float": fitter(T.FloatType()),
    "double": fitter(T.DoubleType()),
    "bytes": fitter(T.BinaryType()),
    "string": fitter(T.StringType()),
}
_DATE, _TIMESTAMP, _LOCAL = fitter(T.DateType()), fitter(T.TimestampType()), fitter(T.TimestampNTZType())


def _time(fit: Fit, epoch: Any, unit: int) -> Fit:
    """Return the function that counts units, of so many microseconds, since the epoch."""

    def count(value: Any) -> int:
        number, rest = divmod((fit(value) - epoch) // timedelta(microseconds=1), unit)
        if rest:
            raise MisfitError(value)
        return int(number)

    return count


_LOGICAL: dict[tuple[str, Json], Fit] = {
    ("int", "date"): lambda value: (_DATE(value) - date(1970, 1, 1)).days,
    ("long", "timestamp-millis"): _time(_TIMESTAMP, EPOCH, 1000),
    ("long", "timestamp-micros"): _time(_TIMESTAMP, EPOCH, 1),
    ("long", "local-timestamp-millis"): _time(_LOCAL, LOCAL_EPOCH, 1000),
    ("long", "local-timestamp-micros"): _time(_LOCAL, LOCAL_EPOCH, 1),
}


class AvroWriter:
    """Writes structs as the records of a schema. names: of its fields."""

    indexes: tuple[int, ...] = ()

    def __init__(self, schema: Schema) -> None:
        """Raise UnsupportedError if fastavro is missing, ValueError or others if the schema is no record."""
        self._write_value = library("fastavro").schemaless_writer
        self._schema, self._named = parsed(schema)
        self._stored: dict[str, Fit] = {}  # of named types
        self._record = self._fit(self._schema)
        self.names: frozenset[str] | None = frozenset(field["name"] for field in self._schema["fields"])

    def write(self, value: Any) -> bytes:
        """Return the bytes. Raises one of UNFIT."""
        file = io.BytesIO()
        self._write_value(file, self._schema, self._record(value))
        return file.getvalue()

    def _fit(self, schema: Json) -> Fit:
        """Return the function that makes a value what the library stores for a schema. It raises one of UNFIT."""
        if isinstance(schema, list):
            return self._union(schema)
        if isinstance(schema, str):
            return self._named_fit(schema)
        kind, logical = schema["type"], schema.get("logicalType")
        if not isinstance(kind, str):
            return self._fit(kind)
        if kind in ("bytes", "fixed"):
            return _decimal(schema) if logical == OUR_DECIMAL else _bytes(schema.get("size"))
        if (kind, logical) in _LOGICAL:
            return _LOGICAL[kind, logical]
        if kind in ("record", "error"):
            return self._record_fit(schema)
        if kind == "array":
            items = self._fit(schema["items"])
            return lambda value: [items(part) for part in as_list(value)]
        if kind == "map":
            values = self._fit(schema["values"])
            return lambda value: {_PRIMITIVE["string"](key): values(part) for key, part in pairs_of(value)}
        return _only(schema["symbols"].__contains__) if kind == "enum" else self._named_fit(kind)

    def _named_fit(self, name: str) -> Fit:
        if name == "null":
            return exactly(type(None))
        if name in _PRIMITIVE:
            return _PRIMITIVE[name]

        def fit(value: Any) -> Any:  # made when it is needed: a type may contain itself
            if name not in self._stored:
                self._stored[name] = self._fit(self._named[name])
            return self._stored[name](value)

        return fit

    def _union(self, branches: list[Json]) -> Fit:
        """Return the function for the first branch that a value fits. The library is told its name."""
        fits = [(_name(branch), self._fit(branch)) for branch in branches]
        values = [(name, fit) for name, fit in fits if name != "null"]
        is_nullable = len(values) < len(fits)

        def fit_union(value: Any) -> Any:
            if value is None and is_nullable:
                return None
            for name, fit in values[:-1]:
                try:
                    return name, fit(value)
                except UNFIT:
                    continue
            if not values:
                raise MisfitError(value)
            name, fit = values[-1]
            return name, fit(value)

        return fit_union

    def _record_fit(self, schema: Json) -> Fit:
        # A field that a struct does not have: None fits if it can be null.
        fields = [(field["name"], self._fit(field["type"]), field.get("default")) for field in schema["fields"]]
        names = frozenset(name for name, _, _ in fields)

        def fit_record(value: Any) -> Any:
            for name in as_dict(value).keys() - names:
                raise UnfitError(name, MisfitError())
            stored = {}
            for name, fit, default in fields:
                try:
                    stored[name] = fit(value.get(name, default))
                except UNFIT as error:
                    raise UnfitError(name, error) from None
            return stored

        return fit_record


def _name(branch: Json) -> str:
    if isinstance(branch, str):
        return branch
    return str(branch["name"] if "name" in branch else branch["type"])


def _only(accepts: Callable[[Any], bool]) -> Fit:
    """Return the function that returns the values that a condition accepts."""

    def fit_some(value: Any) -> Any:
        if not accepts(value):
            raise MisfitError(value)
        return value

    return fit_some


def _bytes(size: int | None) -> Fit:
    return _only(lambda value: size in (None, len(_PRIMITIVE["bytes"](value))))


def _decimal(schema: Json) -> Fit:
    scale, size = schema.get("scale", 0), schema.get("size")
    fit = fitter(T.DecimalType(schema["precision"], scale))

    def fit_decimal(value: Any) -> bytes:
        number = int(EXACT.scaleb(fit(value), scale))
        bits = (number if number >= 0 else ~number).bit_length()
        return number.to_bytes(bits // 8 + 1 if size is None else size, "big", signed=True)

    return fit_decimal


# -- JSON texts that their JSON Schema accepts -------------------------------------------------------------------------

_FLOAT = struct.Struct("<f")


class _Members(dict[str, Any]):
    """Members of an object. nulls: names of the members that are null."""

    nulls: frozenset[str] = frozenset()


class JsonWriter:
    """Writes structs of one type. names: any."""

    indexes: tuple[int, ...] = ()
    names: frozenset[str] | None = None

    def __init__(self, schema: Schema, kind: T.StructType) -> None:
        """Raise UnsupportedError if jsonschema is missing, SchemaError for a type that JSON does not have, ValueError
        or others if the schema is not valid.
        """
        self._validator = JsonReader(None).validator(schema)
        self._members = _fit(kind, "the struct")

    def write(self, value: Any) -> bytes:
        """Return the text. Raises one of UNFIT."""
        members = self._members(value)
        errors = self._errors(members)
        if sum(_add_required(members, error) for error in errors):
            errors = self._errors(members)
        if errors:
            raise UnfitError(".".join(map(str, errors[0].absolute_path)) or str(errors[0].validator), MisfitError())
        return text_of(members).encode()

    def _errors(self, members: Any) -> list[Any]:
        text = text_of(members).encode()
        try:
            return self._validator.errors(parse(text), len(text))
        except UnreadableError as error:
            raise MisfitError(str(error)) from None
        except self._validator.unresolved as error:
            raise SchemaError(f"the JSON Schema refers to {error}, which it does not have: add it there") from None


def _add_required(members: Any, error: Any) -> bool:
    """Add the null members that an error of the validator misses. Return whether there are any."""
    for step in error.absolute_path:
        members = members[step]
    if error.validator != "required" or not isinstance(members, _Members):
        return False
    missing = sorted(members.nulls.intersection(error.validator_value))
    members |= dict.fromkeys(missing)
    return bool(missing)


def _fit(kind: T.DataType, path: str) -> Fit:
    """Return the function that makes a value one of JSON. Raises SchemaError."""
    if isinstance(kind, T.StructType):
        return _struct([(one.name, _fit(one.dataType, one.name)) for one in kind])
    if isinstance(kind, T.ArrayType):
        items = _fit(kind.elementType, path)
        return lambda value: [None if part is None else items(part) for part in value]
    if isinstance(kind, T.MapType) and isinstance(kind.keyType, T.StringType):
        values = _fit(kind.valueType, path)
        return lambda value: {key: None if part is None else values(part) for key, part in pairs_of(value)}
    if isinstance(kind, T.BinaryType | T.MapType):
        raise SchemaError(f"{path} has type {kind.simpleString()}, which JSON does not have: cast it to STRING")
    fit, written = fitter(kind, path=path), _WRITTEN.get(type(kind))
    return fit if written is None else lambda value: written(fit(value))


def _struct(fields: list[tuple[str, Fit]]) -> Fit:
    def fit_struct(value: Any) -> Any:
        if type(value) is not dict:
            raise MisfitError(value)
        members = _Members()
        for name, fit in fields:
            part = value[name]
            if part is not None:
                try:
                    members[name] = fit(part)
                except UNFIT as error:
                    raise UnfitError(name, error) from None
        members.nulls = frozenset(name for name, _ in fields if name not in members)
        return members

    return fit_struct


def _float(value: float) -> Decimal | float:
    """Return a FLOAT in as few digits as it needs, as its double would have digits that it does not have."""
    if _double(value) == 0:
        return value
    digits = (f"{value:.{count}g}" for count in range(6, 10))
    return next(Decimal(text) for text in digits if _FLOAT.unpack(_FLOAT.pack(float(text)))[0] == value)


_double = _only(math.isfinite)

_WRITTEN: dict[type[T.DataType], Fit] = {
    T.FloatType: _float,
    T.DoubleType: _double,
    T.DecimalType: lambda value: Decimal(f"{value:f}"),
    T.DateType: lambda value: value.isoformat(),
    T.TimestampType: lambda value: f"{value.astimezone(UTC).replace(tzinfo=None).isoformat()}Z",
    T.TimestampNTZType: lambda value: value.isoformat(),
}

# -- Protobuf messages -------------------------------------------------------------------------------------------------

_KINDS: dict[str, T.DataType] = {
    "BOOLEAN": T.BooleanType(), "INT": T.IntegerType(), "BIGINT": T.LongType(), "DECIMAL(20, 0)": T.DecimalType(20, 0),
    "FLOAT": T.FloatType(), "DOUBLE": T.DoubleType(), "STRING": T.StringType(), "BINARY": T.BinaryType(),
}  # fmt: skip
_FITS = {number: fitter(_KINDS[name]) for number, name in TYPES.items()}  # by the type's number
_TIME = fitter(T.TimestampType())


class ProtobufWriter:
    """Writes structs as one message. names: of its fields; indexes: the message indexes of its framing."""

    def __init__(self, descriptors: bytes, schema: Schema | None, message: str) -> None:
        """schema: of a registry, or None. Raise UnsupportedError if protobuf is missing, KeyError for the message."""
        reader = ProtobufReader(descriptors, message)
        self._kind, self._message, self.indexes = reader.message_of(schema, message)
        self.names: frozenset[str] | None = frozenset(self._message.fields_by_name)

    def write(self, value: Any) -> bytes:
        """Return the bytes, the same for equal values. Raises one of UNFIT."""
        message = self._kind()
        _fill(message, self._message, value)
        if not self._kind.IsInitialized(message):
            raise UnfitError(self._kind.FindInitializationErrors(message)[0], MisfitError())
        return bytes(self._kind.SerializeToString(message, deterministic=True))


# A field may have the name of a method or of DESCRIPTOR: methods are those of the class, and `kind` is the descriptor.


def _fill(message: Any, kind: Any, value: Any) -> None:
    fields = kind.fields_by_name
    for name, part in as_dict(value).items():
        try:
            _set(message, fields[name], part)
        except UNFIT as error:
            raise UnfitError(name, error) from None


def _set(message: Any, field: Any, value: Any) -> None:
    """Set a field. Null is a field that is not set: others than those that have presence would get their default."""
    if value is None:
        if not field.has_presence:
            raise MisfitError(value)
        return
    target = getattr(message, field.name)
    if is_map(field):
        key_field, value_field = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        for key, part in pairs_of(value):
            if value_field.message_type is None:
                target[_scalar(key_field, key)] = _scalar(value_field, part)
            else:
                _put(target[_scalar(key_field, key)], value_field.message_type, part)
    elif field.is_repeated:
        for part in as_list(value):
            if field.message_type is None:
                target.append(_scalar(field, part))
            else:
                _put(target.add(), field.message_type, part)
    else:
        if field.containing_oneof is not None and type(message).WhichOneof(message, field.containing_oneof.name):
            raise MisfitError(value)  # the other one would be lost
        if field.message_type is None:
            setattr(message, field.name, _scalar(field, value))
        else:
            type(target).SetInParent(target)
            _put(target, field.message_type, value)


def _put(message: Any, kind: Any, value: Any) -> None:
    if kind.full_name == TIMESTAMP:
        passed = _TIME(value) - EPOCH
        message.seconds, message.nanos = passed // timedelta(seconds=1), passed.microseconds * 1000
    elif is_wrapper(kind):
        message.value = _scalar(kind.fields[0], value)
    else:
        _fill(message, kind, value)


def _scalar(field: Any, value: Any) -> Any:
    if field.enum_type is not None:
        return field.enum_type.values_by_name[value].number
    fitted = _FITS[field.type](value)
    return int(fitted) if type(fitted) is Decimal else fitted
