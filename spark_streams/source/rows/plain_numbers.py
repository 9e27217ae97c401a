"""Cast numbers in their plain form from the reply's own bytes: no text is copied, and no Python object made.

    integer    1 to 16 digits, also after a minus
    decimal    the same with at most one point, before the last seven digits or fewer
    float      as decimal, with at most 15 digits: such a number and its power of ten are floats without rounding, so
               one division rounds as the standard asks for
    boolean    true, false

Eight digits are one word of 64 bits. Three multiplications add them up: neighbours first, then pairs, then fours. All
other forms, and values that the type cannot hold, raise NotPlainError. Then the texts are cast (cast.py), with the same
result for plain ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_streams.wire.entries.lines import Index, Mask
from spark_streams.wire.entries.spans import Spans

Words = npt.NDArray[np.uint64]
Values = npt.NDArray[Any]

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
    """Return the values of a signed integer type."""
    number = signed_numbers(spans)
    if to.bit_width < 64:
        bound = 1 << (to.bit_width - 1)
        if number.min() < -bound or number.max() >= bound:
            raise NotPlainError
    return number.astype(to.to_pandas_dtype(), copy=False)


def signed_numbers(spans: Spans) -> Index:
    """Return whole numbers."""
    negative, size = _signs(spans)
    number = unsigned_numbers(spans, spans.end, size).view(np.int64)
    return number if negative is None else np.negative(number, out=number, where=negative)


def floats(spans: Spans, to: pa.DataType) -> Values:
    """Return the values of a floating-point type."""
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
    """Return the number that the digits in the used bits of each word mean."""
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
    """Return how many characters are behind the point: one number, if it is the same for all values, or one for each;
    -1 if there is no point."""
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
