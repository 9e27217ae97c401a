"""What a Python worker of Spark does once, in its first task."""

from __future__ import annotations

import functools
import gc


@functools.cache
def settle_in() -> None:
    """Take what is there by now, the imported modules above all, out of garbage collection.

    Spark's worker collects garbage after each task (pyspark/daemon.py), and the next task on it waits for that: 40 ms,
    as long as reading 100,000 entries takes, to look at modules that will never be garbage.
    """
    gc.freeze()
