"""Cast plain forms from the reply's own bytes: no text is copied, and no Python object made.

    integer    1 to 16 digits, also after a minus
    decimal    the same with at most one point, before the last seven digits or fewer
    float      as decimal, with at most 15 digits: such a number and its power of ten are floats without rounding, so
               one division rounds as the standard asks for
    boolean    true, false
    date       2013-01-31
    timestamp  2013-01-31T10:00:00, or with a space for the T; up to six digits of a second after a point, and Z, may
               follow. Or up to 15 digits of milliseconds since the epoch

All other forms, and values that the type cannot hold, raise NotPlainError: text_forms.py reads them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_streams.connector.wire.entry_page import EntryPage, VectorPage
from spark_streams.connector.wire.lines import Bytes, Index, Mask, Spans

Words: TypeAlias = npt.NDArray[np.uint64]
Values: TypeAlias = npt.NDArray[Any]

_MINUS, _POINT = b"-."
_MOST_PLACES = 7  # digits behind a point: then it lies in the last word
_MOST_FLOAT_DIGITS, _MOST_FLOAT32 = 15, 1 << 24
_MOST_DECIMAL_DIGITS = 18  # of a decimal that is computed in 64 bits
_POWERS = 10 ** np.arange(_MOST_DECIMAL_DIGITS + 1)


def _each_byte(byte: int) -> np.uint64:
    return np.uint64(int.from_bytes(bytes([byte]) * 8, "little"))


# By a number of characters: the bits of the last ones in a word.
_LAST = np.array([((1 << 64) - 1) & ~((1 << 8 * (8 - size)) - 1) for size in range(9)], np.uint64)
_ZEROS, _ABOVE_NINE, _HIGH_BITS = _each_byte(ord("0")), _each_byte(0x80 - 10), _each_byte(0x80)
_TRUE, _FALSE = (int.from_bytes(text, "little") for text in (b"true", b"false"))


class NotPlainError(Exception):
    """A value has another form, or does not fit."""


def require(right: Mask) -> None:
    """Raise NotPlainError unless all are true."""
    if np.count_nonzero(right) < len(right):
        raise NotPlainError


def integers(spans: Spans, to: pa.DataType) -> Values:
    number = signed_numbers(spans)
    if to.bit_width < 64:
        bound = 1 << (to.bit_width - 1)
        if number.min() < -bound or number.max() >= bound:
            raise NotPlainError
    return number.astype(to.to_pandas_dtype(), copy=False)


def signed_numbers(spans: Spans) -> Index:
    negative, size = _signs(spans)
    number = unsigned_numbers(spans, spans.end, size).view(np.int64)
    return number if negative is None else np.negative(number, out=number, where=negative)


def floats(spans: Spans, to: pa.DataType) -> Values:
    negative, mantissa, places = _mantissas(spans, _MOST_FLOAT_DIGITS)
    if pa.types.is_float16(to) or (pa.types.is_float32(to) and mantissa.max() > _MOST_FLOAT32):
        raise NotPlainError
    kind = to.to_pandas_dtype()
    number = mantissa.astype(kind)
    number /= _POWERS[places].astype(kind)
    return number if negative is None else np.negative(number, out=number, where=negative)


def decimals(spans: Spans, to: pa.DataType) -> Values:
    """Return the values of a decimal type, each as two halves of 128 bits."""
    negative, mantissa, places = _mantissas(spans, 16)
    further = to.scale - places
    if np.min(further) < 0 or np.max(further) + len(str(mantissa.max())) > min(_MOST_DECIMAL_DIGITS, to.precision):
        raise NotPlainError
    number = mantissa.view(np.int64) * _POWERS[further]
    if negative is not None:
        np.negative(number, out=number, where=negative)
    halves = np.empty((len(number), 2), np.int64)
    halves[:, 0], halves[:, 1] = number, number >> 63
    return halves


def booleans(spans: Spans, _to: pa.DataType) -> Values:
    """Return truth values, a byte each."""
    size = spans.end - spans.begin
    word = spans.windows(spans.end - 8, 8).view("<u8")[:, 0]
    true: Mask = word >> np.uint64(32) == _TRUE
    true &= size == 4
    false = word >> np.uint64(24) == _FALSE
    false &= size == 5
    require(true | false)
    return true


def _signs(spans: Spans) -> tuple[Mask | None, Index]:
    """Return which values have a minus, None for no value, and how many characters follow it."""
    negative = spans.data[spans.begin] == _MINUS
    size = spans.end - spans.begin
    if not np.count_nonzero(negative):
        return None, size
    size -= negative
    return negative, size


def unsigned_numbers(spans: Spans, end: Index, size: Index) -> Words:
    """Return the numbers of 1 to 16 digits that end there."""
    low, high = _words(spans, end, size)
    return _sum(low, high, size)


def _words(spans: Spans, end: Index, size: Index) -> tuple[Words, Words | None]:
    """Return the last eight characters, and those before them if there are such."""
    if size.min() < 1:
        raise NotPlainError
    if size.max() <= 8:
        return spans.windows(end - 8, 8).view("<u8")[:, 0], None
    if size.max() > 16:
        raise NotPlainError
    pair = spans.windows(end - 16, 16).view("<u8")
    return pair[:, 1], pair[:, 0]


def _sum(low: Words, high: Words | None, size: Index) -> Words:
    """Return the numbers that the last digits of these words mean."""
    if high is None:
        return _sum_eight(low, _LAST.take(size))
    number = _sum_eight(high, _LAST.take(np.maximum(size, 8) - 8))
    number *= np.uint64(10**8)
    number += _sum_eight(low, _LAST.take(np.minimum(size, 8)))
    return number


def _sum_eight(word: Words, used: Words) -> Words:
    """Return the number that the digits in the used bits of each word mean: neighbours first, then twos, then fours."""
    digits = word ^ _ZEROS
    digits &= used
    high = digits + _ABOVE_NINE
    high |= digits
    high &= _HIGH_BITS
    require(high == 0)
    digits *= np.uint64(10 * (1 << 8) + 1)
    digits >>= np.uint64(8)
    digits &= np.uint64(0x00FF00FF00FF00FF)
    digits *= np.uint64(100 * (1 << 16) + 1)
    digits >>= np.uint64(16)
    digits &= np.uint64(0x0000FFFF0000FFFF)
    digits *= np.uint64(10_000 * (1 << 32) + 1)
    digits >>= np.uint64(32)
    return digits


def _mantissas(spans: Spans, most_digits: int) -> tuple[Mask | None, Words, Any]:
    """Return which values are negative, None for no value; their digits as a number; and how many of them are behind
    the point, one for all or for each."""
    negative, size = _signs(spans)
    low, high = _words(spans, spans.end, size)
    places = _places(spans, size)
    pointed = places >= 0
    behind = _LAST[np.where(pointed, places, 8)]
    before = low << np.uint64(8)
    if high is not None:
        before |= high >> np.uint64(56)
        high = np.where(pointed, high << np.uint64(8), high)
    digits = size - pointed
    if digits.min() < 1 or digits.max() > most_digits:
        raise NotPlainError
    before &= ~behind
    before |= low & behind
    return negative, _sum(before, high, digits), np.maximum(places, 0)


def _places(spans: Spans, size: Index) -> Any:
    """Return how many characters are behind the point, one number for all values or one for each; -1: no point."""
    first = spans.first()
    guess = len(first) - 1 - first.rfind(b".") if b"." in first else -1
    is_possible = 0 <= guess <= _MOST_PLACES and guess < size.min()
    if is_possible and (spans.data[spans.end - (guess + 1)] == _POINT).all():
        return np.int64(guess)
    places = np.full(len(size), -1)
    for place in range(_MOST_PLACES + 1):
        at_point = spans.data[spans.end - (place + 1)] == _POINT
        at_point &= size > place
        places[at_point] = place
        if np.count_nonzero(places >= 0) == len(places):
            break
    return places


# -- times -------------------------------------------------------------------------------------------------------------
# All values of a column must have the length, the separators and the zone of the first one. Two digits are the key of a
# table: of months, or of the microseconds that so many days, hours, minutes or seconds take.


_FIRST_YEAR, _YEARS = 1600, 800
_MOST_DIGITS = 15  # of milliseconds, whose microseconds fit into 64 bits
_DATE = re.compile(rb"\d{4}-\d\d-\d\d", re.ASCII)
_TIMESTAMP = re.compile(_DATE.pattern + rb"[T ]\d\d:\d\d:\d\d(?:\.(\d{1,6}))?Z?", re.ASCII)
_SECOND = 1_000_000  # µs
_DAY = 86_400 * _SECOND
_INVALID = -(1 << 60)  # µs; a sum of four of them is below all times, and no overflow
_ZEROS_16 = np.uint16(int.from_bytes(b"00", "little"))


def dates(spans: Spans, _to: pa.DataType) -> Values:
    first = spans.first()
    if _DATE.fullmatch(first) is None:
        raise NotPlainError
    return (_midnights(_like(first, spans)) // _DAY).astype(np.int32)


def timestamps(spans: Spans, to: pa.DataType) -> Values:
    if to.unit != "us":
        raise NotPlainError
    first = spans.first()
    if first.isdigit():
        if (spans.end - spans.begin).max() > _MOST_DIGITS:
            raise NotPlainError
        return signed_numbers(spans) * 1000
    form = _TIMESTAMP.fullmatch(first)
    if form is None:
        raise NotPlainError
    characters = _like(first, spans)
    time = _midnights(characters)
    for offset, table in zip((11, 14, 17), _tables().clock, strict=True):
        time += _of_two(characters, offset, table)
    _require_valid(time)
    if form[1] is not None:
        digits = len(form[1])
        end = spans.begin + (20 + digits)
        fraction = unsigned_numbers(spans, end, np.full(len(end), digits)).view(np.int64)
        time += fraction * 10 ** (6 - digits)
    return time


def _like(first: bytes, spans: Spans) -> Bytes:
    """Return the (rows × length) characters of all values. Raises NotPlainError unless they have the length and
    the separators of the first one: all its characters that are no digits."""
    size = len(first)
    require(spans.end - spans.begin == size)
    characters = spans.windows(spans.begin, size)
    for offset in {min(offset, size - 8) for offset in range(0, size, 8)}:
        part = first[offset : offset + 8]
        mask = np.uint64(int.from_bytes(bytes([0 if 0x30 <= byte <= 0x39 else 0xFF for byte in part]), "little"))
        if mask:
            separators = np.uint64(int.from_bytes(part, "little")) & mask
            require(characters[:, offset : offset + 8].view("<u8")[:, 0] & mask == separators)
    return characters


def _midnights(characters: Bytes) -> Index:
    """Return when each of these days begins. Raises NotPlainError if there is no such day."""
    tables = _tables()
    month = _of_two(characters, 0, tables.century)
    month += _of_two(characters, 2, tables.year)
    month += _of_two(characters, 5, tables.month)
    if month.min() < 0 or month.max() >= len(tables.first_day):
        raise NotPlainError
    day = _of_two(characters, 8, tables.day)
    require(day <= tables.last_day.take(month))
    _require_valid(day)
    day += tables.first_day.take(month)
    return day


def _require_valid(time: Index) -> None:
    if time.min() < _INVALID // 2:
        raise NotPlainError


def _of_two(characters: Bytes, offset: int, table: Index) -> Index:
    """Return what the table says for the two characters at the offset."""
    key = characters[:, offset : offset + 2].view("<u2")[:, 0] ^ _ZEROS_16
    value: Index = table.take(key.astype(np.intp), mode="clip")
    return value


class _Tables:
    """Tables in microseconds, or in months for the first three."""

    def __init__(self) -> None:
        # By two digits.
        self.century = _by_two_digits(range(100), 1200, -12 * _FIRST_YEAR)
        self.year = _by_two_digits(range(100), 12)
        self.month = _by_two_digits(range(1, 13), 1, -1)
        self.day = _by_two_digits(range(1, 32), _DAY, -_DAY)
        self.clock = [_by_two_digits(range(count), unit * _SECOND) for count, unit in ((24, 3600), (60, 60), (60, 1))]
        # By month since _FIRST_YEAR: when it begins, and its last day, after the first one.
        first = (_FIRST_YEAR - 1970) * 12
        months = np.arange(first, first + _YEARS * 12 + 1).astype("datetime64[M]")
        days = months.astype("datetime64[D]").astype(np.int64)
        self.first_day, self.last_day = days[:-1] * _DAY, (np.diff(days) - 1) * _DAY


@cache
def _tables() -> _Tables:
    return _Tables()


def _by_two_digits(numbers: range, unit: int, start: int = 0) -> Index:
    """Return start + number × unit by the digits of the number, the first one in the lower byte; _INVALID for other
    bytes, and in the last place."""
    table = np.full((10 << 8) + 1, _INVALID, np.int64)
    for number in numbers:
        table[number // 10 + (number % 10 << 8)] = start + number * unit
    return table


# -- columns -----------------------------------------------------------------------------------------------------------
# A call of numpy costs as much as a thousand values. So columns of one type are cast together, up to what a processor's
# second cache holds (FACTS A7).


_CASTS: Sequence[tuple[Callable[[pa.DataType], bool], Callable[[Spans, pa.DataType], Values]]] = (
    (pa.types.is_signed_integer, integers),
    (pa.types.is_floating, floats),
    (pa.types.is_boolean, booleans),
    (pa.types.is_timestamp, timestamps),
    (pa.types.is_date32, dates),
    (pa.types.is_decimal128, decimals),
)
_FEWEST, _TOGETHER = 1500, 1 << 14  # values; fewer are cast by Arrow faster


def plain_columns(page: EntryPage, fields: Iterable[pa.Field]) -> dict[str, pa.Array]:
    """Return the columns that could be cast so, by name. Each is the one that cast_values returns."""
    if not isinstance(page, VectorPage):
        return {}
    by_type: dict[pa.DataType, list[str]] = {}
    for field in fields:
        if any(includes(field.type) for includes, _ in _CASTS):
            by_type.setdefault(field.type, []).append(field.name)
    columns: dict[str, pa.Array] = {}
    size = max(1, _TOGETHER // max(1, page.count))
    for to, names in by_type.items():
        if page.count * len(names) < _FEWEST:
            continue
        having = [(name, spans) for name in names if (spans := page.spans(name.encode())) is not None]
        for start in range(0, len(having), size):
            columns.update(_cast(having[start : start + size], to))
    return columns


def _cast(columns: Sequence[tuple[str, Spans]], to: pa.DataType) -> Iterator[tuple[str, pa.Array]]:
    """Yield the columns that have the plain form: all together, or one by one if another column among them has not."""
    cast = next(cast for includes, cast in _CASTS if includes(to))
    names, spans = zip(*columns, strict=True)
    try:
        values = cast(Spans.concatenate(spans), to)
    except NotPlainError:
        if len(columns) > 1:
            for column in columns:
                yield from _cast([column], to)
        return
    for name, part in zip(names, values.reshape(len(names), -1, *values.shape[1:]), strict=True):
        yield name, _column(part, to)


def _column(values: Values, to: pa.DataType) -> pa.Array:
    """Return the values, which have the layout of the type but for truth values, as its column."""
    data = np.packbits(values, bitorder="little") if pa.types.is_boolean(to) else values
    return pa.Array.from_buffers(to, len(values), [None, pa.py_buffer(data)])
