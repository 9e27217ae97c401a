"""Cast dates and timestamps in their plain form from the reply's own bytes.

    date       2013-01-31
    timestamp  2013-01-31T10:00:00, or with a space for the T; up to six digits of a second after a point, and Z, may
               follow. Or up to 15 digits of milliseconds since the epoch

All values of a column must have the length, the separators and the zone of the first one. Two digits are the key of a
table: of months, or of the microseconds that so many days, hours, minutes or seconds take.
"""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pyarrow as pa

from spark_streams.source.rows.plain_numbers import NotPlainError, Values, require, signed_numbers, unsigned_numbers
from spark_streams.wire.entries.lines import Bytes, Index
from spark_streams.wire.entries.spans import Spans

_FIRST_YEAR, _YEARS = 1600, 800
_MOST_DIGITS = 15  # of milliseconds, whose microseconds fit into 64 bits
_DATE = re.compile(rb"\d{4}-\d\d-\d\d", re.ASCII)
_TIMESTAMP = re.compile(_DATE.pattern + rb"[T ]\d\d:\d\d:\d\d(?:\.(\d{1,6}))?Z?", re.ASCII)
_SECOND = 1_000_000  # µs
_DAY = 86_400 * _SECOND
_INVALID = -(1 << 60)  # µs; a sum of four of them is below all times, and no overflow
_ZEROS = np.uint16(int.from_bytes(b"00", "little"))


def dates(spans: Spans, _to: pa.DataType) -> Values:
    """Return the values of the type date32."""
    first = spans.first()
    if _DATE.fullmatch(first) is None:
        raise NotPlainError
    return (_midnights(_like(first, spans)) // _DAY).astype(np.int32)


def timestamps(spans: Spans, to: pa.DataType) -> Values:
    """Return the values of a type with microseconds."""
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
    key = characters[:, offset : offset + 2].view("<u2")[:, 0] ^ _ZEROS
    value: Index = table.take(key.astype(np.intp), mode="clip")
    return value


class _Tables:
    """Tables by two digits, and by month since _FIRST_YEAR: first_day: when it begins; last_day: its last day, after
    the first one. In microseconds, or in months for the first three."""

    def __init__(self) -> None:
        self.century = _by_two_digits(range(100), 1200, -12 * _FIRST_YEAR)
        self.year = _by_two_digits(range(100), 12)
        self.month = _by_two_digits(range(1, 13), 1, -1)
        self.day = _by_two_digits(range(1, 32), _DAY, -_DAY)
        self.clock = [_by_two_digits(range(count), unit * _SECOND) for count, unit in ((24, 3600), (60, 60), (60, 1))]
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
