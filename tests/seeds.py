"""Seeds of random tests: chosen by the day (UTC), so that what fails fails again on that day, whatever is committed.

RSTREAM_SEED=n      begin with this seed
RSTREAM_TIMES=20    so many times the usual number of runs, as `scripts/test --nightly` has it
"""

from __future__ import annotations

import functools
import os
import time

_DAY = 86_400  # seconds
TIMES = int(os.environ.get("RSTREAM_TIMES") or 1)


@functools.cache
def first_seed() -> int:
    """RSTREAM_SEED, or the day as a number: odd and even days alternate, and so do the three turns of long tests."""
    if os.environ.get("RSTREAM_SEED"):
        return int(os.environ["RSTREAM_SEED"])
    return int(time.time()) // _DAY * 1001  # so that two days share no seed


def seeds(usual: int) -> range:
    """The seeds of a random test that usually has `usual` runs."""
    return range(first_seed(), first_seed() + usual * TIMES)
