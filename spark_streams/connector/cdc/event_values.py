"""Values of an event as values of columns: null if they do not fit.

The expressions of a column are SQL texts: a table may have hundreds of columns, and Python needs about a millisecond
for each operation on a Column. They contain no backslash outside of raw literals, because the setting
`spark.sql.parser.escapedStringLiterals` decides about others. Arguments and results are such texts.

A kind is the part of the event's schema that describes a value, null without a schema: it tells the unit of a time and
how a decimal number is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pyspark.sql import Column
from pyspark.sql import functions as F
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

from spark_streams.connector.spark.running_pyspark import quoted


def literal(text: str) -> str:
    parts = [f"r'{part}'" for part in text.split("'")]
    return parts[0] if len(parts) == 1 else f"concat({', char(39), '.join(parts)})"


def let(variable: str, value: str, then: str) -> str:
    """Return the expression `then`, in which the variable is the value: it is computed once."""
    return f"get(transform(array({value}), {variable} -> {then}), 0)"


def cast(value: str, to: DataType) -> str:
    """Return a cast; null if the value does not fit."""
    return f"try_cast({value} AS {to.simpleString()})"


# -- JSON: numbers keep their digits, and differ from texts ------------------------------------------------------------

# Spark's from_json reads a number for a STRING as a binary floating-point number: 1.10 becomes 1.1, and digits after
# the seventeenth are lost. So each number becomes a JSON string before it is read: a mark, U+0001, and the number's
# text.
#
#     {"a": 1.10, "b": "1.10", "c": [2]}    →    {"a": "\u00011.10", "b": "1.10", "c": ["\u00012"]}
#
# A text that has the mark itself must not look like a number. So `u0001`, with which JSON writes the mark, is doubled
# in the whole text first, and only a mark of this module is not followed by it.
#
# Arrays and objects that are read as STRING are JSON texts, in which marks are written `\u0001`. `text_of` undoes all
# this.

TEXTS = "MAP<STRING, STRING>"
_MARK = "\x01"
_ESCAPED = "u0001"
# From the end of the last number: all that is no number, texts as a whole; then a number. Possessive, so that a long
# text costs no stack.
_NUMBER_IN_JSON = (
    r'\G((?:[^"\d-]++|-(?!\d)|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+)'
    r"(-?(?:0|[1-9]\d*+)(?:\.\d++)?(?:[eE][+-]?\d++)?)(?=[\s,}\]]|$)"
)
_MARKED_NUMBER = r'"\\u0001(-?\d[\d.eE+-]*+)"'


def mark_numbers(text: Column) -> Column:
    """Return the JSON text with each number as a marked text."""
    doubled = F.replace(text, F.lit(_ESCAPED), F.lit(_ESCAPED * 2))
    return F.regexp_replace(doubled, _NUMBER_IN_JSON, r'$1"\\u0001$2"')


def read_json(marked: str, schema: str) -> str:
    """Return the SQL expression that reads a JSON text whose numbers are marked. schema: only with STRING for values
    that are not nested."""
    # Spark accepts texts in single quotes, which are no JSON, and which mark_numbers does not know.
    return f"from_json({marked}, {literal(schema)}, map('allowSingleQuotes', 'false'))"


def is_number(value: str) -> str:
    """Return the SQL expression for: the value is a JSON number."""
    return f"(startswith({value}, char(1)) AND NOT startswith({value}, concat(char(1), '{_ESCAPED}')))"


def text_of(value: str) -> str:
    """Return the SQL expression for the text of a value: of a number its digits, of an array or object its JSON."""
    unmarked = f"regexp_replace({value}, {literal(_MARKED_NUMBER)}, '$1')"
    text = f"regexp_replace({unmarked}, concat('(', char(1), '|{_ESCAPED}){_ESCAPED}'), '$1')"
    number = f"WHEN {is_number(value)} THEN substr({value}, 2)"
    return f"CASE {number} WHEN contains({value}, '{_ESCAPED}') THEN {text} ELSE {value} END"


def name_in_json(text: str) -> str:
    """Return the value of a text, or the name of a member, that was read."""
    return text.replace(_ESCAPED, _ESCAPED * 2).replace(_MARK, _MARK + _ESCAPED)


def number_in_json(number: str) -> str:
    """Return the value of a number that was read."""
    return f"{_MARK}{number}"


def name_members(members: Column, names: Sequence[str], is_case_sensitive: bool) -> Column:
    """Return a map of members in which each name occurs once, with its last value. Members whose names differ from one
    of `names` only in case have that name, unless another member has exactly that name."""
    keys = F.map_keys(members)
    by_case = {name.lower(): name for name in names}
    is_exact = F.size(F.array_distinct(keys)) == F.size(keys)
    pairs = F.map_entries(members)
    if not is_case_sensitive and names:
        other_case = F.exists(keys, lambda key: F.lower(key).isin(*by_case) & ~key.isin(*names))
        is_exact &= ~other_case
        name_by_case = F.create_map(*[F.lit(text) for pair in by_case.items() for text in pair])
        there = F.array_intersect(keys, F.array(*map(F.lit, names)))  # at most as many as names

        def rename(pair: Column, exact: Column) -> Column:
            name = F.try_element_at(name_by_case, F.lower(pair["key"]))
            key = F.when(name.isNull() | F.array_contains(exact, name), pair["key"]).otherwise(name)
            return F.struct(key.alias("key"), pair["value"].alias("value"))

        pairs = _let(there, lambda exact: F.transform(pairs, lambda pair: rename(pair, exact)))
    return F.when(members.isNull() | is_exact, members).otherwise(F.map_from_entries(_last_of_each(pairs)))


def _last_of_each(pairs: Column) -> Column:
    """Return the last pair of each key, in their order: found by sorting, as anyone may write any number of them."""
    placed = F.transform(
        pairs, lambda pair, place: F.struct(pair["key"].alias("key"), place.alias("place"), pair.alias("pair"))
    )
    return _let(F.sort_array(placed), _lasts)


def _lasts(ordered: Column) -> Column:
    following = F.slice(ordered, 2, F.size(ordered))

    def last(one: Column, after: Column) -> Column:
        is_last = after.isNull() | (after["key"] != one["key"])
        return F.when(is_last, F.struct(one["place"].alias("place"), one["pair"].alias("pair")))

    lasts = F.array_compact(F.zip_with(ordered, following, last))
    return F.transform(F.sort_array(lasts), lambda one: one["pair"])


def _let(value: Column, then: Callable[[Column], Column]) -> Column:
    """Return what the function makes of the value, which is computed once, and not for each element of an array."""
    return F.get(F.transform(F.array(value), then), F.lit(0))


# -- decimal numbers without rounding: from digits, with or without an exponent, and from bytes ------------------------

# Bytes are a whole number, big-endian, in two's complement, of any length. They become digits, and their scale becomes
# an exponent: 1250 with scale 2 is `1250E-2`. A number that does not fit its type without rounding is null.

# Anyone may write a text, and a cast takes a time that grows with the square of its digits.
MOST_CHARACTERS = 1_000
# Possessive: no digit is tried twice.
_BASE64 = "^(?:[A-Za-z0-9+/]{4})*+(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
_NUMBER = "^[+-]?(?=[.]?[0-9])[0-9]*+(?:[.][0-9]*+)?(?:[eE][+-]?[0-9]{1,4})?$"
_PARTS = "^([+-]?)([0-9]*+)(?:[.]([0-9]*+))?(?:[eE]([+-]?[0-9]{1,4}))?$"
_MOST_ZEROS = 80  # that an exponent adds: more than a decimal type holds


def exact_decimal(text: str, target: DecimalType) -> str:
    """Return the number that the text means, null if it is none, or if the type cannot hold all its digits, or if the
    text has more than MOST_CHARACTERS."""
    plain = f"^[+-]?(?=[.]?[0-9])[0-9]*+(?:[.][0-9]{{0,{target.scale}}}+0*+)?$"
    # White space around a number is ignored, as in Spark's cast.
    number = (
        f"CASE WHEN length(digits) > {MOST_CHARACTERS} THEN NULL "
        f"WHEN rlike(digits, '{plain}') THEN {cast('digits', target)} "
        f"WHEN rlike(digits, '{_NUMBER}') THEN {_by_parts('digits', target)} END"
    )
    return let("digits", f"trim({text})", number)


def scaled(unscaled: str, scale: str) -> str:
    """Return a whole number's text with its scale as an exponent."""
    return f"concat({unscaled}, 'E', cast(try_subtract(0, try_cast({scale} AS INT)) AS STRING))"


def is_ambiguous(text: str) -> str:
    """Whether a text may mean a number by its digits, and by its bytes in base64."""
    return f"(length({text}) <= {MOST_CHARACTERS} AND rlike({text}, '{_NUMBER}') AND rlike({text}, '{_BASE64}'))"


def whole_number(base64: str) -> str:
    """Return the digits of a whole number that is written as bytes; null if it has more than 38."""
    shortest = f"regexp_replace(hex(try_to_binary({base64}, 'base64')), '^(?:00)+(?=[0-7])|^(?:FF)+(?=[89A-F])', '')"
    # The complement of a negative number is its size less one, so no sum overflows.
    complement = _unsigned("translate(bytes, '0123456789ABCDEF', 'FEDCBA9876543210')")
    negative = f"concat('-', cast(try_add({complement}, cast(1 AS DECIMAL(38, 0))) AS STRING))"
    number = f"CASE WHEN bytes >= '8' THEN {negative} ELSE cast({_unsigned('bytes')} AS STRING) END"
    return let("bytes", shortest, f"CASE WHEN length(bytes) BETWEEN 2 AND 32 THEN {number} END")


def _unsigned(hexadecimal: str) -> str:
    """Return a number of at most 32 hexadecimal digits as DECIMAL(38,0), null if it has more than 38 digits."""
    high, low = (
        f"try_cast(conv({half}(lpad({hexadecimal}, 32, '0'), 16), 16, 10) AS DECIMAL(20, 0))"
        for half in ("left", "right")
    )
    return f"try_cast(try_add(try_multiply({high}, 18446744073709551616BD), {low}) AS DECIMAL(38, 0))"


def _by_parts(text: str, target: DecimalType) -> str:
    """Return a number with an exponent, or with zeros behind the last place of the type."""
    sign, integer, fraction, exponent = (f"regexp_extract({text}, '{_PARTS}', {group})" for group in range(1, 5))
    # excess: how many digits are behind the last place; if negative, how many zeros are missing.
    excess = f"length({fraction}) - coalesce(try_cast({exponent} AS INT), 0) - {target.scale}"
    parts = f"struct({sign} AS sign, concat({integer}, {fraction}) AS digits, {excess} AS excess)"
    all_digits = f"concat(parts.digits, repeat('0', least(-parts.excess, {_MOST_ZEROS})))"
    first_digits = "left(parts.digits, length(parts.digits) - parts.excess)"
    kept = f"CASE WHEN parts.excess <= 0 THEN {all_digits} ELSE {first_digits} END"
    is_exact = "(parts.excess <= 0 OR rlike(right(parts.digits, parts.excess), '^0*$'))"
    whole_digits = f"lpad(kept, greatest(length(kept), {target.scale + 1}), '0')"
    number = f"regexp_replace({whole_digits}, '([0-9]{{{target.scale}}})$', '.$1')" if target.scale else whole_digits
    shifted = let("kept", f"ltrim('0', {kept})", cast(f"concat(parts.sign, {number})", target))
    return let("parts", parts, f"CASE WHEN {is_exact} THEN {shifted} END")


# -- numbers as dates and times ----------------------------------------------------------------------------------------

# In decimal numbers: no microsecond is lost. A time that Spark cannot represent is null.

Unit = Literal["ms", "us", "ns"]
WHOLE = "^-?[0-9]{1,19}$"
_FIRST, _LAST = -62_135_596_800, 253_402_300_799  # seconds: the years 1 to 9999, which Spark and Python can represent
_DAY, _MICROS = 86_400, 1_000_000
_DAYS, _DECIMAL_NUMBER = DecimalType(10, 0), DecimalType(28, 9)  # 19 digits before the point, as in 64 bits
_WHOLE_NUMBER = "try_cast(floor(number) AS BIGINT)"
# Spark's `/` is a floating-point number, and its `div` rounds towards 0.
_MICROSECONDS: Mapping[Unit, str] = {
    "ms": "try_cast(floor(number * 1000) AS BIGINT)",
    "us": _WHOLE_NUMBER,
    "ns": let("whole", _WHOLE_NUMBER, "whole div 1000L - CASE WHEN whole % 1000L < 0 THEN 1 ELSE 0 END"),
}


def date(number: str) -> str:
    """Return the day of a number of days since 1970. number: its text."""
    days = f"try_cast({exact_decimal(number, _DAYS)} AS INT)"
    day = f"CASE WHEN days BETWEEN {_FIRST // _DAY} AND {_LAST // _DAY} THEN date_from_unix_date(days) END"
    return let("days", days, day)


def moment(number: str, is_of_unit: Mapping[Unit, str]) -> str:
    """Return the time of a number since 1970, cut off to microseconds; null if no unit is true. number: its text."""
    by_unit = " ".join(f"WHEN {is_true} THEN {_MICROSECONDS[unit]}" for unit, is_true in is_of_unit.items())
    micros = let("number", exact_decimal(number, _DECIMAL_NUMBER), f"CASE {by_unit} END")
    first, last = _FIRST * _MICROS, (_LAST + 1) * _MICROS - 1
    return let("micros", micros, f"CASE WHEN micros BETWEEN {first} AND {last} THEN timestamp_micros(micros) END")


# -- a value by its kind and the type of its column --------------------------------------------------------------------

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
        return f"CASE {' '.join(f'WHEN {is_true} THEN {value}' for is_true, value in choices)} ELSE text END"


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
