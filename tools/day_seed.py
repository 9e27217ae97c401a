"""The seed of a day (UTC): what fails fails again on that day, whatever is committed. RSTREAM_SEED replaces it."""

from __future__ import annotations

import functools
import os
import time

_DAY = 86_400  # seconds


def seed_of_day(day: int) -> int:
    """Return the seed of a day. Days have no seed in common, and in 14 days it takes each value modulo 2 · 7."""
    return day * 1003  # 17 · 59: it shares no factor with a number of turns


@functools.cache
def first_seed() -> int:
    """Return RSTREAM_SEED, or the seed of the day."""
    if os.environ.get("RSTREAM_SEED"):
        return int(os.environ["RSTREAM_SEED"])
    return seed_of_day(int(time.time()) // _DAY)
