"""Whether an entry ID is a time, and the age of the entry. Pure: the caller passes the clock.

By default Redis takes milliseconds since 1970 as the first part of an ID. Producers may choose other numbers:

    counters, seconds                        smaller than FIRST_MS
    milliseconds                             from FIRST_MS to AHEAD_MS after now     a time
    microseconds, nanoseconds, snowflakes    larger

A number that is no time has no age: it is unknown.
"""

from __future__ import annotations

from spark_streams.base.ids import StreamId

FIRST_MS = 1_000_000_000_000  # September 2001
AHEAD_MS = 24 * 3_600_000  # a day: clocks of producers may be ahead


def is_time(entry: StreamId, now_ms: int) -> bool:
    """Whether the ID may be the time, in milliseconds since the epoch, at which the entry was added."""
    return FIRST_MS <= entry.ms <= now_ms + AHEAD_MS


def age_ms(entry: StreamId, now_ms: int) -> int | None:
    """Return the age of an entry by its ID, in milliseconds; None if the ID is not a time."""
    return max(0, now_ms - entry.ms) if is_time(entry, now_ms) else None
