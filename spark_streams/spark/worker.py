"""What Python processes that Spark starts do once."""

from __future__ import annotations

import functools
import gc
import signal
import sys
import threading


@functools.cache
def settle_in() -> None:
    """In a worker's first task: take what is there by now, the imported modules above all, out of garbage collection.

    Spark's worker collects garbage after each task (pyspark/daemon.py), and the next task on it waits for that: 40 ms,
    as long as reading 100,000 entries takes, to look at modules that will never be garbage.
    """
    gc.freeze()


def leave_interrupts_to_the_driver() -> None:
    """In the process that Spark has started beside the driver for a streaming source: Ctrl-C at a terminal reaches it,
    too, and would end the query in the middle of a batch; whether and when it ends is the driver's to say."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    in_main_thread = threading.current_thread() is threading.main_thread()
    if spec is not None and spec.name.startswith("pyspark.") and in_main_thread:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
