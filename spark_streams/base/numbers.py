"""Whole numbers as text: in entries, keys, names of streams, and in a server's replies about itself.

Any client that may write an entry or a key chooses that text: 5,000 digits, `²`, an empty string. Only this module
parses it, with bounds: Python's `int` raises ValueError beyond 4,300 digits, and accepts texts that no query writes
(`1_0`, ` 1`). tests/base/test_numbers.py finds every other place. Pure.
"""

from __future__ import annotations

COUNT_MAX = 999_999_999  # of tries, redrives, deliveries: fits int32, and nine digits in a pattern

_U64_MAX = 2**64 - 1
_MAX_DIGITS = 20  # of that


def parse_number(text: str | bytes, maximum: int = _U64_MAX, minimum: int = 0) -> int | None:
    """Parse ASCII digits as a number from `minimum` to `maximum`, with a minus sign if `minimum` is below 0. None for
    any other text."""
    negative = minimum < 0 and text[:1] in ("-", b"-")
    digits = text[1:] if negative else text
    if not digits.isascii() or not digits.isdigit() or len(digits) > _MAX_DIGITS:
        return None
    number = -int(digits) if negative else int(digits)
    return number if minimum <= number <= maximum else None
