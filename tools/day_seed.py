"""The seed of a day (UTC): what fails fails again on that day, whatever is committed. RSTREAM_SEED replaces it."""

from __future__ import annotations

import functools
import os
import time

_DAY = 86_400  # seconds


@functools.cache
def first_seed() -> int:
    """RSTREAM_SEED, or the day as a number: odd and even days alternate, and so do the three turns of long tests."""
    if os.environ.get("RSTREAM_SEED"):
        return int(os.environ["RSTREAM_SEED"])
    return int(time.time()) // _DAY * 1001  # so that two days share no seed
