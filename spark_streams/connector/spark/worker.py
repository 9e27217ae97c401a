"""Set-up of Python processes that Spark starts."""

from __future__ import annotations

import functools
import gc
import signal
import sys
import threading

_OBJECTS_PER_COLLECTION = 50_000  # new objects


@functools.cache
def freeze_imported_modules() -> None:
    """Exclude existing objects, mostly imported modules, from garbage collection. Called in a worker's first task.

    Spark's worker collects garbage after each task (pyspark/daemon.py), and the next task waits for it. Without this,
    that takes 40 ms, as long as reading 100,000 entries.
    """
    gc.freeze()


def set_up_source_process() -> None:
    """Set up the process that Spark starts on the driver for a streaming source. In other processes, do nothing.

    SIGINT is ignored. Ctrl-C at a terminal reaches this process, too, and would end the query in the middle of a batch.
    Only the driver decides when the query ends.

    Garbage is collected rarely. A trigger creates some objects for each stream, and hardly any that only a collection
    removes. With Python's threshold of 700 objects, collections take a quarter of a trigger over 10,000 streams.
    """
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    in_main_thread = threading.current_thread() is threading.main_thread()
    if spec is not None and spec.name.startswith(("pyspark.", "_engine_pyspark.")) and in_main_thread:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        freeze_imported_modules()
        gc.set_threshold(_OBJECTS_PER_COLLECTION)
