"""Values of an event as values of columns: null if they do not fit.

A value is a text of exact_json.py. A kind is the part of the event's schema that describes it, null without a schema:
it tells the unit of a time and how a decimal number is written. Arguments and results are SQL expressions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from spark_streams.connector.cdc.decimals import exact_decimal, is_ambiguous, scaled, whole_number
from spark_streams.connector.cdc.exact_json import TEXTS, is_number, name_in_json, read_json, text_of
from spark_streams.connector.cdc.sql import cast, let, literal, quoted
from spark_streams.connector.cdc.times import WHOLE, Unit, date, moment

Decimals = Literal["text", "base64"]

_KIND = f"name: STRING, type: STRING, parameters: {TEXTS}"
# Of an array, `items` describes its elements.
FIELD = f"field: STRING, {_KIND}, items: STRUCT<{_KIND}>"
_UNKNOWN = f"cast(NULL AS STRUCT<{_KIND}>)"
# Names of Kafka Connect's and Debezium's types of times, by unit.
_TIMES: dict[Unit, str] = {"ms": "[.]Timestamp$", "us": "[.]MicroTimestamp$", "ns": "[.]NanoTimestamp$"}
_DATE = "[.]Date$"
_OFFSET_OF_DATE = "^([0-9]{4}-[0-9]{2}-[0-9]{2})(?:Z|[+]00:00)$"  # Debezium's IsoDate, which is in UTC
_VARIABLE_SCALE = "STRUCT<scale: STRING, value: STRING>"


@dataclass(frozen=True)
class Converter:
    """unit: of times that are numbers, decimals: form of decimal numbers that are texts; both in events without a
    schema, None if it is not known."""

    unit: Unit | None
    decimals: Decimals | None

    def value(self, value: str, target: DataType, kind: str) -> str:
        """Return the value of a column."""
        if not isinstance(target, (StructType, ArrayType, MapType)):
            return self._scalar(value, target, kind)
        parts = read_json(value, _shape(target))
        if isinstance(target, StructType):  # from_json returns a struct of nulls for a text that is no object
            parts = f"CASE WHEN {read_json(value, TEXTS)} IS NOT NULL THEN {parts} END"
        typed = self._nested("parts0", target, kind, f"{kind}.items", 1)
        fitting = f"CASE WHEN {_fits('parts0', 'typed0', target, 1)} THEN typed0 END"
        return let("parts0", parts, let("typed0", typed, fitting))

    def reason(self, value: str, field: StructField, kind: str) -> str:
        """Return why the value of a column does not fit."""
        unfit = literal(f"column {field.name!r} does not fit {field.dataType.simpleString().upper()}")
        if not isinstance(field.dataType, DecimalType) or self.decimals is not None:
            return unfit
        ambiguous = literal(
            f"column {field.name!r} may be text or base64, and the event has no schema. Set decimals='text' or "
            "decimals='base64'"
        )
        return f"CASE WHEN {kind} IS NULL AND {is_ambiguous(value)} THEN {ambiguous} ELSE {unfit} END"

    def _nested(self, parts: str, target: DataType, kind: str, items: str, depth: int) -> str:
        """Return a value from its parts, which are texts. kind, items: of the value and of an array's elements."""
        part = f"part{depth}"
        if isinstance(target, StructType):
            members = [
                f"{self._nested(_member(parts, field), field.dataType, _UNKNOWN, _UNKNOWN, depth + 1)} "
                f"AS {quoted(field.name)}"
                for field in target
            ]
            return f"CASE WHEN {parts} IS NOT NULL THEN struct({', '.join(members)}) END"
        if isinstance(target, ArrayType):
            value = self._nested(part, target.elementType, items, _UNKNOWN, depth + 1)
            return f"transform({parts}, {part} -> {value})"
        if isinstance(target, MapType):
            value = self._nested(part, target.valueType, _UNKNOWN, _UNKNOWN, depth + 1)
            return f"transform_values({parts}, (name{depth}, {part}) -> {value})"
        return self._scalar(parts, target, kind)

    def _scalar(self, value: str, target: DataType, kind: str) -> str:
        if isinstance(target, StringType):
            return text_of(value)
        if isinstance(target, BinaryType):
            return f"CASE WHEN NOT {is_number(value)} THEN try_to_binary({text_of(value)}, 'base64') END"
        if isinstance(target, DecimalType):
            return exact_decimal(let("text", text_of(value), self._digits(value, target, kind)), target)
        if isinstance(target, (DateType, TimestampType, TimestampNTZType)):
            return let("text", text_of(value), self._time(value, target, kind))
        return cast(text_of(value), target)

    def _time(self, value: str, target: DataType, kind: str) -> str:
        """Return a date or a time from `text`: of a number, of a text that is a number, or of ISO-8601."""
        text = "text"
        if isinstance(target, DateType):
            of_number = f"CASE WHEN {kind} IS NULL OR rlike({kind}.name, '{_DATE}') THEN {date('text')} END"
            text = f"regexp_replace(text, '{_OFFSET_OF_DATE}', '$1')"
        elif isinstance(target, TimestampType):
            of_number = self._moment(kind)
        else:
            # A number counts from 1970 in UTC, whatever the session's time zone is.
            seconds = f"cast(unix_micros({self._moment(kind)}) AS DECIMAL(20, 0)) / 1000000BD"
            of_number = f"TIMESTAMP_NTZ'1970-01-01 00:00:00' + make_dt_interval(0, 0, 0, {seconds})"
        is_numeric = f"{is_number(value)} OR rlike(text, '{WHOLE}')"
        return f"CASE WHEN {is_numeric} THEN {of_number} ELSE {cast(text, target)} END"

    def _moment(self, kind: str) -> str:
        """Return a time that is the number `text`, in the unit that its type says."""
        is_of_unit = {unit: f"rlike({kind}.name, '{name}')" for unit, name in _TIMES.items()}
        if self.unit is not None:
            is_of_unit[self.unit] = f"coalesce({is_of_unit[self.unit]}, true)"
        return moment("text", is_of_unit)

    def _digits(self, value: str, target: DecimalType, kind: str) -> str:
        """Return a decimal number, which is `text`, as digits; null if its form cannot be told."""
        variable = let("parts", read_json("text", _VARIABLE_SCALE), scaled(whole_number("parts.value"), "parts.scale"))
        scale = let("scale", f"{kind}.parameters['scale']", text_of("scale"))
        choices = [
            (is_number(value), "text"),
            ("startswith(text, '{')", variable),
            (f"endswith({kind}.name, 'data.Decimal')", scaled(whole_number("text"), f"coalesce({scale}, '0')")),
        ]
        if self.decimals == "base64":
            choices.append((f"{kind} IS NULL", scaled(whole_number("text"), str(target.scale))))
        if self.decimals is None:
            choices.append((f"{kind} IS NULL AND {is_ambiguous('text')}", "NULL"))
        return _case(choices, "text")


def _case(choices: Sequence[tuple[str, str]], otherwise: str) -> str:
    return f"CASE {' '.join(f'WHEN {is_true} THEN {value}' for is_true, value in choices)} ELSE {otherwise} END"


def _member(parts: str, field: StructField) -> str:
    return f"{parts}.{quoted(name_in_json(field.name))}"


def _shape(target: DataType) -> str:
    """Return the type with STRING for each value that is not nested."""
    if isinstance(target, StructType):
        fields = [f"{quoted(name_in_json(field.name))}: {_shape(field.dataType)}" for field in target]
        return f"STRUCT<{', '.join(fields)}>"
    if isinstance(target, ArrayType):
        return f"ARRAY<{_shape(target.elementType)}>"
    if isinstance(target, MapType):
        return f"MAP<{target.keyType.simpleString()}, {_shape(target.valueType)}>"
    return "STRING"


def _fits(parts: str, typed: str, target: DataType, depth: int) -> str:
    """Return whether each part that is not null has a value."""
    part, value = f"part{depth}", f"value{depth}"
    if isinstance(target, StructType):
        conditions = [
            _fits(_member(parts, field), f"{typed}.{quoted(field.name)}", field.dataType, depth + 1) for field in target
        ]
        return f"({parts} IS NULL OR ({' AND '.join(conditions) or 'true'}))"
    if isinstance(target, ArrayType):
        fits = _fits(part, value, target.elementType, depth + 1)
        return f"({parts} IS NULL OR forall(zip_with({parts}, {typed}, ({part}, {value}) -> {fits}), fits -> fits))"
    if isinstance(target, MapType):
        return _fits(f"map_values({parts})", f"map_values({typed})", ArrayType(target.valueType), depth)
    return f"({parts} IS NULL OR {typed} IS NOT NULL)"
