"""Structs of Spark as JSON texts that their JSON Schema accepts. A null member is left out, unless it is required."""

from __future__ import annotations

import struct
from datetime import UTC
from decimal import Decimal
from typing import Any

from pyspark.sql import types as T

from spark_streams.connector.errors import SchemaError
from spark_streams.connector.schemas.fit import UNFIT, Fit, MisfitError, UnfitError, fitter, pairs_of
from spark_streams.connector.schemas.json_schema.text import JsonReader, parse, text_of
from spark_streams.connector.schemas.reasons import UnreadableError
from spark_streams.connector.schemas.registry import Schema

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
    if value == 0 or value - value != 0:
        return _double(value)
    digits = (f"{value:.{count}g}" for count in range(6, 10))
    return next(Decimal(text) for text in digits if _FLOAT.unpack(_FLOAT.pack(float(text)))[0] == value)


def _double(value: float) -> float:
    if value - value != 0:
        raise MisfitError(value)
    return value


_WRITTEN: dict[type[T.DataType], Fit] = {
    T.FloatType: _float,
    T.DoubleType: _double,
    T.DecimalType: lambda value: Decimal(f"{value:f}"),
    T.DateType: lambda value: value.isoformat(),
    T.TimestampType: lambda value: f"{value.astimezone(UTC).replace(tzinfo=None).isoformat()}Z",
    T.TimestampNTZType: lambda value: value.isoformat(),
}
