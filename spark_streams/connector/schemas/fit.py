"""Decoded values into Spark's types.

A value that a type cannot hold as it is does not fit: nothing is rounded, cut or read as another type.

    integers        whole numbers in the type's range          DECIMAL   numbers with no more digits than the type has
    FLOAT, DOUBLE   floats; other numbers if no digit is lost  STRING    text          BINARY         bytes
    DATE, TIMESTAMP, TIMESTAMP_NTZ                             dates and times; in JSON also their texts (ISO 8601)
    STRUCT          members by name: a missing member is null, others are left out     ARRAY, MAP     of their parts
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from pyspark.sql import types as T

from spark_streams.connector.errors import SchemaError
from spark_streams.connector.schemas.reasons import EXACT

Fit = Callable[[Any], Any]
_BITS: dict[type[T.DataType], int] = {T.ByteType: 8, T.ShortType: 16, T.IntegerType: 32, T.LongType: 64}
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(?:\.\d{1,6})?)(?:(?<=\.\d{6})0+)?([Zz]|[+-]\d\d:\d\d)?", re.ASCII
)
_FLOAT = struct.Struct("<f")


class MisfitError(ValueError):
    """The type cannot hold the value."""


class UnfitError(MisfitError):
    """A part of a value does not fit. path: names of the fields that lead to it."""

    def __init__(self, name: str, reason: Exception) -> None:
        self.path: str = f"{name}.{reason.path}" if isinstance(reason, UnfitError) else name
        super().__init__(self.path)


UNFIT = (ValueError, ArithmeticError, TypeError, LookupError)  # what a wrong value raises


def pairs_of(value: Any) -> list[tuple[Any, Any]]:
    """Return the pairs of a MAP, which Arrow gives as a list of them. {}: a schema's default."""
    if value == {}:
        return []
    if type(value) is not list or any(type(pair) is not tuple for pair in value):
        raise MisfitError(value)
    return value


def fitter(kind: T.DataType, has_texts: bool = False, path: str = "into") -> Fit:
    """Return the function that returns a value, which is not null, as Arrow takes it for this type.

    has_texts: dates and times are texts; path: the place of the type, for messages. The function raises MisfitError or
    another ValueError, ArithmeticError or TypeError. Raises SchemaError if values cannot be decoded into the type.
    """
    if isinstance(kind, T.StructType):
        return _struct([(one.name, one.nullable, fitter(one.dataType, has_texts, one.name)) for one in kind])
    if isinstance(kind, T.ArrayType):
        items = fitter(kind.elementType, has_texts, path)
        return lambda value: [None if part is None else items(part) for part in as_list(value)]
    if isinstance(kind, T.MapType):
        key_fit, values = fitter(kind.keyType, has_texts, path), fitter(kind.valueType, has_texts, path)
        return lambda value: [
            (key_fit(key), None if part is None else values(part)) for key, part in as_dict(value).items()
        ]
    if type(kind) in _BITS:
        return _integer(_BITS[type(kind)])
    if isinstance(kind, T.DecimalType):
        return _decimal(kind.precision, kind.scale)
    simple = (_TEXTS if has_texts else {}).get(type(kind)) or _SIMPLE.get(type(kind))
    if simple is None:
        raise SchemaError(
            f"{path} has type {kind.simpleString()}, into which values cannot be decoded: declare STRUCT, ARRAY, MAP, "
            "a number, BOOLEAN, STRING, BINARY, DATE, TIMESTAMP or TIMESTAMP_NTZ"
        )
    return simple


def _struct(fields: list[tuple[str, bool, Fit]]) -> Fit:
    required = [name for name, nullable, _ in fields if not nullable]
    parts = [(name, fit) for name, _, fit in fields]

    def fit_struct(value: Any) -> Any:
        if type(value) is not dict:
            raise MisfitError(value)
        get = value.get
        fitted = {name: None if (part := get(name)) is None else fit(part) for name, fit in parts}
        if required and any(fitted[name] is None for name in required):
            raise MisfitError(value)
        return fitted

    return fit_struct


def _integer(bits: int) -> Fit:
    lowest, highest = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def fit_integer(value: Any) -> Any:
        if type(value) is Decimal and value.adjusted() < 20:  # 1.0 in JSON
            value = int(EXACT.quantize(value, Decimal(1)))
        if type(value) is not int or not lowest <= value <= highest:
            raise MisfitError(value)
        return value

    return fit_integer


def _decimal(precision: int, scale: int) -> Fit:
    unit = Decimal(1).scaleb(-scale)

    def fit_decimal(value: Any) -> Any:
        number = Decimal(value) if type(value) is int else value
        if type(number) is not Decimal or not number.is_finite():
            raise MisfitError(value)
        if number and number.adjusted() >= precision - scale:
            raise MisfitError(value)
        return EXACT.quantize(number, unit)

    return fit_decimal


def _double(value: Any) -> Any:
    if type(value) is float:
        return value
    number = float(value) if type(value) in (int, Decimal) else math.nan
    is_kept = number == value if type(value) is int else math.isfinite(number) and Decimal(repr(number)) == value
    if not is_kept:
        raise MisfitError(value)
    return number


def _float(value: Any) -> Any:
    number = _FLOAT.unpack(_FLOAT.pack(value))[0] if type(value) in (float, int, Decimal) else math.nan
    if type(value) is Decimal:  # 0.1 is the same number in nine digits at most
        is_kept = math.isfinite(number) and any(Decimal(f"{number:.{digits}g}") == value for digits in range(6, 10))
    else:
        is_kept = number == value or (type(value) is float and math.isnan(value))
    if not is_kept:
        raise MisfitError(value)
    return number


def _string(value: Any) -> Any:
    if type(value) is not str:
        raise MisfitError(value)
    if not value.isascii():
        value.encode()  # half of a surrogate pair, which JSON can write, is no text
    return value


def exactly(kind: type) -> Fit:
    """Return the function for values that have this type of Python already."""

    def fit_exactly(value: Any) -> Any:
        if type(value) is not kind:
            raise MisfitError(value)
        return value

    return fit_exactly


as_list, as_dict = exactly(list), exactly(dict)


def _timestamp(has_zone: bool) -> Fit:
    def fit_timestamp(value: Any) -> Any:
        if type(value) is not datetime or (value.tzinfo is not None) is not has_zone:
            raise MisfitError(value)
        return value

    return fit_timestamp


def _text_of_time(has_zone: bool) -> Fit:
    def fit_text(value: Any) -> Any:
        match = _TIME.fullmatch(value) if type(value) is str else None
        if match is None or (match[2] is not None) is not has_zone:
            raise MisfitError(value)
        return datetime.fromisoformat((match[1] + (match[2] or "")).upper())

    return fit_text


def _text_of_date(value: Any) -> Any:
    if type(value) is not str or not _DATE.fullmatch(value):
        raise MisfitError(value)
    return date.fromisoformat(value)


_SIMPLE: dict[type[T.DataType], Fit] = {
    T.BooleanType: exactly(bool),
    T.FloatType: _float,
    T.DoubleType: _double,
    T.StringType: _string,
    T.BinaryType: exactly(bytes),
    T.DateType: exactly(date),
    T.TimestampType: _timestamp(has_zone=True),
    T.TimestampNTZType: _timestamp(has_zone=False),
}
_TEXTS: dict[type[T.DataType], Fit] = {
    T.DateType: _text_of_date,
    T.TimestampType: _text_of_time(has_zone=True),
    T.TimestampNTZType: _text_of_time(has_zone=False),
}
