"""Forms of texts of each scalar type, and how a column of such texts is cast.

    integer    digits, a sign
    float      1.5, .5, 5., 1e3, a sign; inf, infinity, nan in any case; too large is infinite, as in Java
    decimal    as float, without the last three; the value must fit exactly into (precision, scale)
    boolean    true, false, 1, 0 in any case
    date       2013-01-31; years beyond 9999 or below 0 with their sign
    timestamp  2013-01-31, 2013-01-31T10, …T10:00, …T10:00:00, …T10:00:00.123456, or with a space for the T; a zone (Z,
               +02:00, +0200, +02) may follow the time, else it is UTC; digits beyond microseconds are cut off.
               Or whole milliseconds since the epoch. TIMESTAMP_NTZ holds the time in UTC.
    time       10, 10:00, 10:00:00, 10:00:00.123456789

White space around a text is ignored. Arrow casts a column at once if all texts have the usual form. If Arrow refuses,
the texts are grouped by the forms of the type. A group that Arrow refuses (a 30th of February) is bisected until the
value is alone. So a bad value takes a few more casts, not one per row. Pure: Arrow in, Arrow out.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, InvalidOperation
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.connector.wire.lines import Index

Cast = Callable[[pa.Array, pa.DataType], pa.Array]


@dataclass(frozen=True)
class TextForm:
    pattern: str  # RE2, of a complete text
    cast: Cast  # a value that does not fit is null, or the cast raises pa.ArrowInvalid for the column


@dataclass(frozen=True)
class ScalarKind:
    includes: Callable[[pa.DataType], bool]  # whether a type is of this kind
    direct_cast: Cast  # casts a column of texts in the usual form, or raises pa.ArrowInvalid
    forms: Sequence[TextForm]  # all forms of a text, of which the first match is used


def plain_cast(text: pa.Array, to: pa.DataType) -> pa.Array:
    return text.cast(to)


def bytes_of(text: pa.Array) -> memoryview:
    _, offsets, data = text.buffers()
    if not len(text) or data is None:
        return memoryview(b"")
    bounds = memoryview(offsets).cast("i")
    return memoryview(data)[bounds[text.offset] : bounds[text.offset + len(text)]]


def nulls_instead(values: pa.Array, missing: Collection[bytes]) -> pa.Array:
    """Return the values, a column of texts or binaries, with null for each that is one of `missing`."""
    is_missing = pc.is_in(values, value_set=pa.array(missing, pa.binary()).cast(values.type))
    return pc.if_else(is_missing, pa.scalar(None, values.type), values) if pc.any(is_missing).as_py() else values


def empty_as_null(text: pa.Array) -> pa.Array:
    return nulls_instead(text, (b"",))


def may_be_plain(texts: Iterable[bytes]) -> bool:
    """Whether one of the texts may be the plain text of a number, a truth value or a time."""
    return any(re.search(rb"[0-9]|^(?i:true|false|[+-]?(?:nan|inf|infinity))$", text) for text in texts)


def _refuse(text: pa.Array, character: bytes) -> None:
    """Raise pa.ArrowInvalid if the column has this character, in lower or upper case."""
    text_bytes = bytes_of(text).tobytes()
    if character in text_bytes or character.upper() in text_bytes:
        raise pa.ArrowInvalid("not of the usual form")


# -- numbers ---------------------------------------------------------------------------------------------------------


def _direct_numbers(text: pa.Array, to: pa.DataType) -> pa.Array:
    _refuse(text, b"(" if pa.types.is_floating(to) else b"x")  # Arrow would read nan(1), and 0x10 as sixteen
    return text.cast(to)


def _short_integers(text: pa.Array, to: pa.DataType) -> pa.Array:
    return _within(pc.utf8_ltrim(text, "+").cast(pa.int64()), to)


def _long_integers(text: pa.Array, to: pa.DataType) -> pa.Array:
    without_zeros = pc.replace_substring_regex(text, r"^([+-]?)0+(\d)", r"\1\2")
    return _within(without_zeros.cast(pa.decimal128(38, 0)), to)


def _within(number: pa.Array, to: pa.DataType) -> pa.Array:
    """Return numbers in the type's range; null for others."""
    bound = 1 << (to.bit_width - 1)
    lowest, highest = (
        pa.scalar(Decimal(end) if pa.types.is_decimal(number.type) else end, number.type) for end in (-bound, bound - 1)
    )
    fits = pc.and_(pc.greater_equal(number, lowest), pc.less_equal(number, highest))
    return pc.if_else(fits, number, None).cast(to)


# Arrow does not detect an overflow when it scales a text that has more digits than the decimal type. With at most 38
# digits before the point and 38 behind it, 76 digits cannot overflow.
_WIDE = pa.decimal256(76, 38)


def _direct_decimals(text: pa.Array, to: pa.DataType) -> pa.Array:
    _refuse(text, b"e")
    longest = pc.max(pc.binary_length(text)).as_py()
    if longest + to.scale <= 38:
        return text.cast(to)
    before = pc.find_substring(text, ".")
    if longest <= 41 and pc.min(before).as_py() >= 0 and pc.max(before).as_py() + to.scale <= 76:
        return text.cast(pa.decimal256(76, to.scale)).cast(to)
    raise pa.ArrowInvalid("not of the usual form")


def _short_decimals(text: pa.Array, to: pa.DataType) -> pa.Array:
    wide = text.cast(_WIDE)
    fits = pc.equal(pc.round(wide, ndigits=to.scale), wide)
    if to.precision - to.scale < 38:
        fits = pc.and_(fits, pc.less(pc.abs(wide), pa.scalar(Decimal(10) ** (to.precision - to.scale), _WIDE)))
    return pc.if_else(fits, wide, None).cast(to)


def _long_decimals(text: pa.Array, to: pa.DataType) -> pa.Array:
    return pa.array([_decimal(value, to) for value in text.to_pylist()], to)


def _decimal(text: str, to: pa.DataType) -> Decimal | None:
    try:
        number = Decimal(text)
        if not number:
            return Decimal(0)
        exact = number.quantize(Decimal(1).scaleb(-to.scale), context=Context(prec=80))
    except InvalidOperation:
        return None
    return exact if exact == number and exact.adjusted() < to.precision - to.scale else None


# -- dates and times -------------------------------------------------------------------------------------------------

_MONTH_AND_DAY = "-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])"
_DAY = r"\d{4}" + _MONTH_AND_DAY
_TIME = r"[T ](?:[01]\d|2[0-3])(?::[0-5]\d(?::[0-5]\d(?:\.\d+)?)?)?"
_ZONE = r"(?:Z|[+-](?:[01]\d|2[0-3])(?::?[0-5]\d)?)"
_FAR_DAY = r"[+-]?\d{4,6}" + _MONTH_AND_DAY
_UTC = pa.timestamp("us", tz="UTC")
_NAIVE = pa.timestamp("us")
_DAYS_IN_400_YEARS = 146_097
_EPOCH_DAY = datetime.date(1970, 1, 1).toordinal()


def _direct_timestamps(text: pa.Array, to: pa.DataType) -> pa.Array:
    """Cast timestamps by the form of the first value: Arrow accepts zones in all values or in none."""
    first = pc.first(text).as_py()
    if first.isdigit():
        return _milliseconds(text, to)
    return text.cast(_UTC if re.search(_ZONE + "$", first[10:]) else _NAIVE).cast(to)


def _moments(text: pa.Array, to: pa.DataType, zone: pa.DataType) -> pa.Array:
    """Cast timestamps, all with a zone or all without one. Digits beyond microseconds are cut off."""
    return pc.replace_substring_regex(text, r"(\.\d{6})\d+", r"\1").cast(zone).cast(to)


def _milliseconds(text: pa.Array, to: pa.DataType) -> pa.Array:
    number = _direct_numbers(pc.utf8_ltrim(text, "+"), pa.int64())
    return pc.multiply_checked(number, 1000).cast(_NAIVE).cast(to)


def _far_dates(text: pa.Array, to: pa.DataType) -> pa.Array:
    return pa.array([_far_day(value) for value in text.to_pylist()], pa.int32()).cast(to)


def _far_timestamps(text: pa.Array, to: pa.DataType) -> pa.Array:
    return pa.array([_far_moment(value) for value in text.to_pylist()], pa.int64()).cast(_NAIVE).cast(to)


def _far_day(text: str) -> int | None:
    """Return the days since the epoch. The calendar repeats every 400 years."""
    sign, digits, month, day = re.fullmatch(r"([+-]?)(\d+)-(\d\d)-(\d\d)", text, re.ASCII).groups()  # type: ignore[union-attr]  # the form ensures a match
    cycles, year = divmod(-int(digits) if sign == "-" else int(digits), 400)
    try:
        days = datetime.date(year + 400, int(month), int(day)).toordinal() - _EPOCH_DAY
    except ValueError:
        return None
    return days + (cycles - 1) * _DAYS_IN_400_YEARS


def _far_moment(text: str) -> int | None:
    day_end = re.match(_FAR_DAY, text, re.ASCII).end()  # type: ignore[union-attr]  # the form ensures a match
    day = _far_day(text[:day_end])
    # The time of day is parsed on a day that datetime can represent.
    try:
        moment = datetime.datetime.fromisoformat("2000-01-02" + text[day_end:].replace("Z", "+00:00"))
    except ValueError:
        return None
    if day is None:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
    second_day = datetime.datetime(2000, 1, 2, tzinfo=datetime.UTC)
    micros = day * 86_400_000_000 + (moment - second_day) // datetime.timedelta(microseconds=1)
    return micros if -(2**63) <= micros < 2**63 else None


def _times(text: pa.Array, to: pa.DataType) -> pa.Array:
    return pc.binary_join_element_wise("1970-01-01T", text, "").cast(pa.timestamp("ns")).cast(to)


_NUMBER = r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"

SCALARS: dict[str, ScalarKind] = {
    "boolean": ScalarKind(pa.types.is_boolean, plain_cast, [TextForm("(?i)^(?:true|false|1|0)$", plain_cast)]),
    "integer": ScalarKind(
        pa.types.is_signed_integer,
        _direct_numbers,
        [TextForm(r"^[+-]?\d{1,18}$", _short_integers), TextForm(r"^[+-]?0*\d{1,38}$", _long_integers)],
    ),
    "float": ScalarKind(
        pa.types.is_floating,
        _direct_numbers,
        [TextForm(rf"^[+-]?{_NUMBER}$", plain_cast), TextForm("(?i)^[+-]?(?:nan|inf|infinity)$", plain_cast)],
    ),
    "decimal": ScalarKind(
        pa.types.is_decimal,
        _direct_decimals,
        [
            TextForm(r"^[+-]?(?:\d{1,38}\.?\d{0,38}|\.\d{1,38})$", _short_decimals),
            TextForm(rf"^[+-]?{_NUMBER}$", _long_decimals),
        ],
    ),
    "date": ScalarKind(
        pa.types.is_date32, plain_cast, [TextForm(f"^{_DAY}$", plain_cast), TextForm(f"^{_FAR_DAY}$", _far_dates)]
    ),
    "timestamp": ScalarKind(
        pa.types.is_timestamp,
        _direct_timestamps,
        [
            TextForm(r"^[+-]?\d+$", _milliseconds),
            TextForm(f"^{_DAY}{_TIME}{_ZONE}$", partial(_moments, zone=_UTC)),
            TextForm(f"^{_DAY}(?:{_TIME})?$", partial(_moments, zone=_NAIVE)),
            TextForm(f"^{_FAR_DAY}(?:{_TIME}{_ZONE}?)?$", _far_timestamps),
        ],
    ),
    "time": ScalarKind(pa.types.is_time64, _times, [TextForm(f"^{_TIME}$".replace("[T ]", ""), _times)]),
}


def scalar_kind(to: pa.DataType) -> ScalarKind | None:
    """Return the kind of a type; None for string, binary, nested and unsupported types."""
    return next((kind for kind in SCALARS.values() if kind.includes(to)), None)


# -- columns -----------------------------------------------------------------------------------------------------------


def cast_texts(text: pa.Array, to: pa.DataType) -> tuple[pa.Array, pa.Array | None]:
    """Cast a string column to a scalar type; see columns.cast_values."""
    if pa.types.is_string(to):
        return text, None
    kind = scalar_kind(to)
    assert kind is not None, f"check_castable refuses {to}"
    try:
        return _directly(kind, text, to), None
    except pa.ArrowInvalid:
        text = empty_as_null(text)
    try:
        return _directly(kind, text, to), None
    except pa.ArrowInvalid:
        column = _cast_by_form(kind, pc.utf8_trim_whitespace(text), to)
    unfit = pc.and_(column.is_null(), text.is_valid())
    return column, unfit if pc.any(unfit).as_py() else None


def _directly(kind: ScalarKind, text: pa.Array, to: pa.DataType) -> pa.Array:
    """Cast texts of the usual form. Raises pa.ArrowInvalid."""
    return pa.nulls(len(text), to) if text.null_count == len(text) else kind.direct_cast(text, to)


def _cast_by_form(kind: ScalarKind, text: pa.Array, to: pa.DataType) -> pa.Array:
    """Cast each text by the first form that it has; null if it has no form or does not fit."""
    remaining = text.is_valid().to_numpy(zero_copy_only=False)
    pieces: list[tuple[pa.Array, Index]] = []
    for form in kind.forms:
        has_form = pc.fill_null(pc.match_substring_regex(text, form.pattern), False).to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(has_form & remaining)
        if len(rows):
            remaining[rows] = False
            for column, part in bisect_cast(form.cast, 1, text.take(pa.array(rows)), rows, to):
                pieces.append((pa.nulls(len(part), to) if column is None else column, part))
        if not remaining.any():
            break
    return assemble(pieces, len(text), to)


def bisect_cast(
    cast: Cast, min_size: int, values: pa.Array, rows: Index, to: pa.DataType
) -> Iterator[tuple[pa.Array | None, Index]]:
    """Yield the cast column in pieces, each with its rows: the largest that `cast` accepts (it raises
    pa.ArrowInvalid). The column is None for refused pieces of at most `min_size` values."""
    try:
        column = cast(values, to)
    except pa.ArrowInvalid:
        if len(rows) <= min_size:
            yield None, rows
            return
        middle = len(rows) // 2
        yield from bisect_cast(cast, min_size, values[:middle], rows[:middle], to)
        yield from bisect_cast(cast, min_size, values[middle:], rows[middle:], to)
    else:
        yield column, rows


def assemble(pieces: list[tuple[pa.Array, Index]], size: int, to: pa.DataType) -> pa.Array:
    """Return one column from pieces with their rows; null in all other rows."""
    if not pieces:
        return pa.nulls(size, to)
    if len(pieces) == 1 and len(pieces[0][1]) == size:
        return pieces[0][0]
    positions = np.full(size, -1, np.int64)
    rows = np.concatenate([rows for _, rows in pieces])
    positions[rows] = np.arange(len(rows))
    return pa.concat_arrays([column for column, _ in pieces]).take(pa.array(positions, mask=positions < 0))
