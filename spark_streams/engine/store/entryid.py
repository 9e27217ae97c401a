"""Entry ids as single integers.

Inside the store an ID is `ms << 64 | seq`: one integer compares, hashes and bisects faster than a pair, and the next ID
is plus one. Texts are parsed as Redis' `streamGenericParseIDOrReply` does. It accepts a little more than
`spark_streams.base.ids`: leading zeros and blanks, because `strtoull` does.
"""

from __future__ import annotations

import re

from spark_streams.base.ids import U64_MAX

LOWEST = 0
HIGHEST = (U64_MAX << 64) | U64_MAX

_LENIENT = re.compile(rb"[ \t\n\v\f\r]*\+?([0-9]+)")


class BadEntryIdError(ValueError):
    """The text is not an entry ID."""


def number(digits: bytes) -> int:
    """Return an unsigned 64-bit number. Raises EntryIdError."""
    if not digits.isdigit():
        match = _LENIENT.fullmatch(digits)
        if match is None:
            raise BadEntryIdError(digits)
        digits = match[1]
    value = int(digits) if len(digits) <= 64 else U64_MAX + 1
    if value > U64_MAX:
        raise BadEntryIdError(digits)
    return value


def parse(text: bytes, missing_seq: int = 0) -> int:
    """Parse `b"5-3"`, or `b"5"` with the sequence number `missing_seq`. `-` and `+` are errors. Raises EntryIdError."""
    if len(text) > 127:
        raise BadEntryIdError(text)
    ms, dash, seq = text.partition(b"-")
    return (number(ms) << 64) | (number(seq) if dash else missing_seq)


def parse_bound(text: bytes, missing_seq: int = 0) -> int:
    """As `parse`; `-` is the lowest ID, `+` the highest."""
    if text == b"-":
        return LOWEST
    if text == b"+":
        return HIGHEST
    return parse(text, missing_seq)


def text(entry_id: int) -> bytes:
    """Return an ID as `<ms>-<seq>`."""
    return b"%d-%d" % (entry_id >> 64, entry_id & U64_MAX)
