"""Values of Spark as Avro by the package fastavro. Each value is first made what Avro stores, without rounding: the
library's own writers of logical types lose digits.
"""

from __future__ import annotations

import io
from datetime import date, timedelta
from typing import Any

from pyspark.sql import types as T

from spark_streams.base.untyped import Json
from spark_streams.connector.schemas.avro import parsed
from spark_streams.connector.schemas.avro_logical import EPOCH, LOCAL_EPOCH, OUR_DECIMAL
from spark_streams.connector.schemas.exact import EXACT
from spark_streams.connector.schemas.fit import UNFIT, Fit, MisfitError, UnfitError, fitter, pairs_of
from spark_streams.connector.schemas.reasons import library
from spark_streams.connector.schemas.registry import Schema

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


def _days(value: Any) -> int:
    days: timedelta = _DATE(value) - date(1970, 1, 1)
    return days.days


def _time(fit: Fit, epoch: Any, unit: int) -> Fit:
    """Return the function that counts units, of so many microseconds, since the epoch."""

    def count(value: Any) -> int:
        number, rest = divmod((fit(value) - epoch) // timedelta(microseconds=1), unit)
        if rest:
            raise MisfitError(value)
        return int(number)

    return count


_LOGICAL: dict[tuple[str, Json], Fit] = {
    ("int", "date"): _days,
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
            return lambda value: [items(part) for part in _of_type(value, list)]
        if kind == "map":
            values = self._fit(schema["values"])
            return lambda value: {_PRIMITIVE["string"](key): values(part) for key, part in pairs_of(value)}
        return _one_of(schema["symbols"]) if kind == "enum" else self._named_fit(kind)

    def _named_fit(self, name: str) -> Fit:
        if name == "null":
            return _null
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
            for name in _of_type(value, dict).keys() - names:
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


def _null(value: Any) -> None:
    if value is not None:
        raise MisfitError(value)


def _of_type(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise MisfitError(value)
    return value


def _bytes(size: int | None) -> Fit:
    def fit_bytes(value: Any) -> Any:
        if size is not None and len(_PRIMITIVE["bytes"](value)) != size:
            raise MisfitError(value)
        return _PRIMITIVE["bytes"](value)

    return fit_bytes


def _one_of(symbols: list[str]) -> Fit:
    def fit_symbol(value: Any) -> Any:
        if value not in symbols:
            raise MisfitError(value)
        return value

    return fit_symbol


def _decimal(schema: Json) -> Fit:
    scale, size = schema.get("scale", 0), schema.get("size")
    fit = fitter(T.DecimalType(schema["precision"], scale))

    def fit_decimal(value: Any) -> bytes:
        number = int(EXACT.scaleb(fit(value), scale))
        bits = (number if number >= 0 else ~number).bit_length()
        return number.to_bytes(bits // 8 + 1 if size is None else size, "big", signed=True)

    return fit_decimal
