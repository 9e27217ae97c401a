"""Set-up of Python processes that Spark starts."""

from __future__ import annotations

import functools
import gc
import signal
import sys
import threading


@functools.cache
def freeze_imported_modules() -> None:
    """Exclude existing objects, mostly imported modules, from garbage collection. Called in a worker's first task.

    Spark's worker collects garbage after each task (pyspark/daemon.py), and the next task waits for it. Without this,
    that takes 40 ms, as long as reading 100,000 entries.
    """
    gc.freeze()


def ignore_interrupts() -> None:
    """Ignore SIGINT in the process that Spark starts on the driver for a streaming source.

    Ctrl-C at a terminal reaches this process, too, and would end the query in the middle of a batch. Only the driver
    decides when the query ends.
    """
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    in_main_thread = threading.current_thread() is threading.main_thread()
    if spec is not None and spec.name.startswith("pyspark.") and in_main_thread:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
