"""Field values (binary columns) to the declared Arrow types, whole columns at a time.

What Arrow's own cast accepts is taken from it; only where a column holds something that it refuses are that column's
values looked at one by one. Pure: Arrow in, Arrow out.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.errors import SchemaError

_UTC = datetime.UTC
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=_UTC)


def check_castable(schema: pa.Schema, skip: frozenset[str]) -> None:
    """Raises SchemaError for a declared type that values cannot be cast to."""
    for field in schema:
        if field.name not in skip and _kind(field.type) is None:
            raise SchemaError(
                f"column {field.name!r} is declared {field.type}: fields are read as string, binary, boolean, integer, "
                "float, decimal, date or timestamp; declare it STRING and use from_json or a cast"
            )


def cast_values(values: pa.Array, to: pa.DataType) -> tuple[pa.Array, pa.Array | None]:
    """(the column, a boolean array of the rows whose value does not fit, or None where all fit).

    values: binary with nulls. A value that does not fit is null in the column. Text is UTF-8; in a STRING column bytes
    that are not UTF-8 become U+FFFD, which counts as fitting.
    """
    kind = _kind(to)
    if kind == "binary":
        return values.cast(to), None
    text = _text(values)
    if kind == "string":
        return text, None
    try:
        return _vectorised(kind or "", text, to), None
    except pa.ArrowInvalid:
        return _one_by_one(kind or "", text, to)


def _kind(to: pa.DataType) -> str | None:
    tests: tuple[tuple[str, Callable[[pa.DataType], bool]], ...] = (
        ("string", pa.types.is_string),
        ("binary", pa.types.is_binary),
        ("boolean", pa.types.is_boolean),
        ("integer", pa.types.is_signed_integer),
        ("float", pa.types.is_floating),
        ("decimal", pa.types.is_decimal),
        ("date", pa.types.is_date32),
        ("timestamp", pa.types.is_timestamp),
    )
    return next((name for name, holds in tests if holds(to)), None)


def _text(values: pa.Array) -> pa.Array:
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([None if v is None else v.decode("utf-8", "replace") for v in values.to_pylist()], pa.string())


def _vectorised(kind: str, text: pa.Array, to: pa.DataType) -> pa.Array:
    """Arrow's cast where it means the same as ours. Raises pa.ArrowInvalid where some value needs a closer look."""
    if kind == "integer":
        # Arrow would read 0x10 as sixteen.
        if pc.any(pc.match_substring(text, "x", ignore_case=True)).as_py():
            raise pa.ArrowInvalid("hexadecimal")
        return text.cast(to)
    if kind == "timestamp":
        if to.tz is None:
            return text.cast(to)
        # Arrow wants a zone in every value, or in none.
        return text.cast(pa.timestamp("us", tz="UTC")).cast(to)
    return text.cast(to)


def _one_by_one(kind: str, text: pa.Array, to: pa.DataType) -> tuple[pa.Array, pa.Array]:
    parse = _PARSERS[kind]
    values: list[Any] = []
    unfit: list[bool] = []
    for value in text.to_pylist():
        parsed = None
        if value is not None:
            parsed = parse(value.strip(), to)
        values.append(parsed)
        unfit.append(value is not None and parsed is None)
    return pa.array(values, to), pa.array(unfit)


def _integer(value: str, to: pa.DataType) -> int | None:
    digits = value[1:] if value[:1] in ("+", "-") else value
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 40:
        return None
    number = int(value)
    top = 1 << (to.bit_width - 1)
    return number if -top <= number < top else None


def _float(value: str, _to: pa.DataType) -> float | None:
    try:
        return None if "_" in value else float(value)
    except ValueError:
        return None


def _decimal(value: str, to: pa.DataType) -> decimal.Decimal | None:
    try:
        number = decimal.Decimal(value)
        exact = number.quantize(decimal.Decimal(1).scaleb(-to.scale), context=decimal.Context(prec=76))
    except decimal.InvalidOperation:
        return None
    fits = exact.is_finite() and exact == number and len(exact.as_tuple().digits) <= to.precision
    return exact if fits else None


def _boolean(value: str, _to: pa.DataType) -> bool | None:
    return {"true": True, "1": True, "false": False, "0": False}.get(value.lower())


def _date(value: str, _to: pa.DataType) -> datetime.date | None:
    try:
        return datetime.date.fromisoformat(value)
    except ValueError:
        return None


def _timestamp(value: str, to: pa.DataType) -> datetime.datetime | None:
    """ISO-8601, UTC where it names no zone, or milliseconds since the epoch."""
    try:
        milliseconds = _integer(value, pa.int64())
        if milliseconds is not None:
            moment = _EPOCH + datetime.timedelta(milliseconds=milliseconds)
        else:
            moment = datetime.datetime.fromisoformat(value)
        # To UTC here and now: near the ends of the calendar that overflows.
        moment = moment.astimezone(_UTC) if moment.tzinfo else moment.replace(tzinfo=_UTC)
    except (ValueError, OverflowError):
        return None
    return moment if to.tz is not None else moment.replace(tzinfo=None)


_PARSERS: dict[str, Callable[[str, pa.DataType], Any]] = {
    "integer": _integer,
    "float": _float,
    "decimal": _decimal,
    "boolean": _boolean,
    "date": _date,
    "timestamp": _timestamp,
}
