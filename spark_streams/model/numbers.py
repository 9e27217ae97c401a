"""Whole numbers that stand as text in entries, in keys, in names of streams, and in what a server says of itself.

Whoever may write an entry or a key chooses that text: 5,000 digits, `²`, nothing at all. It is read here alone, with a
bound: Python's own `int` raises ValueError beyond 4,300 digits, and takes what no query writes (`1_0`, ` 1`, `²` by
`str.isdigit`). tests/model/test_numbers.py finds every other place. Pure.
"""

from __future__ import annotations

COUNT_MAX = 999_999_999  # of tries, redrives, deliveries: fits int32, and nine digits in a pattern

_U64_MAX = 2**64 - 1
_MOST_DIGITS = 20  # of that


def whole(text: str | bytes, most: int = _U64_MAX, least: int = 0) -> int | None:
    """The number from `least` to `most` that these ASCII digits write, with a minus sign if `least` is below 0; None
    for any other text."""
    negative = least < 0 and text[:1] in ("-", b"-")
    digits = text[1:] if negative else text
    if not digits.isascii() or not digits.isdigit() or len(digits) > _MOST_DIGITS:
        return None
    number = -int(digits) if negative else int(digits)
    return number if least <= number <= most else None
