"""Entry IDs of a stream: `<milliseconds>-<sequence>`, two unsigned 64-bit numbers, ordered as a pair.

By default Redis takes milliseconds since 1970 as the first part of an ID. Producers may choose other numbers:

    counters, seconds                        smaller than FIRST_MS
    milliseconds                             from FIRST_MS to AHEAD_MS after now     a time
    microseconds, nanoseconds, snowflakes    larger

A number that is no time has no age: it is unknown. Pure values: no clock, no socket; the caller passes the time.
Source: XADD and XRANGE in Redis' command reference.
"""

from __future__ import annotations

from typing import NamedTuple

from spark_streams.base.numbers import parse_number

U64_MAX = 2**64 - 1
FIRST_MS = 1_000_000_000_000  # September 2001
AHEAD_MS = 24 * 3_600_000  # a day: clocks of producers may be ahead


class InvalidStreamId(ValueError):  # noqa: N818 - named like the option and config errors
    """The text is not `<ms>` or `<ms>-<seq>` with both numbers in 0 … 2**64-1."""

    def __init__(self, text: object) -> None:
        super().__init__(f"not an entry ID: {text!r:.100}. Write <milliseconds> or <milliseconds>-<sequence>")


def _u64(digits: str, text: object) -> int:
    number = parse_number(digits)
    if number is None:
        raise InvalidStreamId(text)
    return number


class StreamId(NamedTuple):
    """One entry ID. Compares, hashes and sorts as (ms, seq), which is the order of the stream."""

    ms: int
    seq: int

    @classmethod
    def parse(cls, text: str | bytes, missing_seq: int = 0) -> StreamId:
        """Parse `'5-3'` → (5, 3); `'5'` → (5, missing_seq): 0 for the start of a range, U64_MAX for its end.

        Raises InvalidStreamId.
        """
        if isinstance(text, bytes):
            first, _, second = text.partition(b"-")
            if first.isdigit() and second.isdigit() and len(first) < 20 > len(second):
                # The common case: below 20 digits, both fit in 64 bits. `cls(…)` takes a third longer.
                return tuple.__new__(cls, (int(first), int(second)))
        plain = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        ms, dash, seq = plain.partition("-")
        return cls(_u64(ms, plain), _u64(seq, plain) if dash else missing_seq)

    def next(self) -> StreamId:
        """Return the smallest ID above this one. Raises OverflowError for the largest ID."""
        if self.seq < U64_MAX:
            return StreamId(self.ms, self.seq + 1)
        if self.ms < U64_MAX:
            return StreamId(self.ms + 1, 0)
        raise OverflowError("no entry ID follows the largest one")

    def previous(self) -> StreamId:
        """Return the largest ID below this one. Raises OverflowError for 0-0."""
        if self.seq > 0:
            return StreamId(self.ms, self.seq - 1)
        if self.ms > 0:
            return StreamId(self.ms - 1, U64_MAX)
        raise OverflowError("no entry ID precedes 0-0")

    def __str__(self) -> str:
        return f"{self.ms}-{self.seq}"

    def __bytes__(self) -> bytes:
        return b"%d-%d" % (self.ms, self.seq)


MIN_ID = StreamId(0, 0)
MAX_ID = StreamId(U64_MAX, U64_MAX)


def is_time(entry: StreamId, now_ms: int) -> bool:
    """Whether the ID may be the time, in milliseconds since the epoch, at which the entry was added."""
    return FIRST_MS <= entry.ms <= now_ms + AHEAD_MS


def age_ms(entry: StreamId, now_ms: int) -> int | None:
    """Return the age of an entry by its ID, in milliseconds; None if the ID is not a time."""
    return max(0, now_ms - entry.ms) if is_time(entry, now_ms) else None
