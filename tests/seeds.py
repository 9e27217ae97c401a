"""Seeds of random tests: chosen by the commit, so that a commit that fails fails each time.

RSTREAM_SEED=n      begin with this seed
RSTREAM_TIMES=20    so many times the usual number of runs, as `scripts/test --nightly` has it
"""

from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path

TIMES = int(os.environ.get("RSTREAM_TIMES") or 1)


@functools.cache
def first_seed() -> int:
    """RSTREAM_SEED, or a number below a million that depends on the commit alone; 0 outside of a clone."""
    if os.environ.get("RSTREAM_SEED"):
        return int(os.environ["RSTREAM_SEED"])
    try:
        words = ["git", "rev-parse", "--short=8", "HEAD"]
        commit = subprocess.run(words, cwd=Path(__file__).parent, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return 0
    return int(commit, 16) % 1_000_000


def seeds(usual: int) -> range:
    """The seeds of a random test that usually has `usual` runs."""
    return range(first_seed(), first_seed() + usual * TIMES)
