"""Seeds of random tests: chosen by the day (UTC), so that what fails fails again on that day, whatever is committed.

RSTREAM_SEED=n      begin with this seed
RSTREAM_TIMES=20    so many times the usual number of runs, as `scripts/test --nightly` has it
"""

from __future__ import annotations

import os

from tools.day_seed import first_seed

TIMES = int(os.environ.get("RSTREAM_TIMES") or 1)


def seeds(usual: int) -> range:
    """The seeds of a random test that usually has `usual` runs."""
    return range(first_seed(), first_seed() + usual * TIMES)
