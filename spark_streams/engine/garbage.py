"""Settings of Python's garbage collector that keep its pauses short.

Nearly all objects of commands and connections are freed by reference counts; a deleted group leaves one cycle for each
consumer. So an object that survives one collection is frozen: later collections skip it until the engine is idle. A
collection then takes a fraction of a millisecond, independent of the size of the streams.
"""

from __future__ import annotations

import gc

_YOUNG = 1_000  # new containers between two collections
_NEVER = 1_000_000_000


def begin() -> None:
    """Collect only new objects from now on. The first idle second collects what the start has left."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(_YOUNG, _NEVER, _NEVER)
    gc.callbacks.append(_leave_out)


def sweep() -> None:
    """Collect all objects; called when no client is active."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def _leave_out(phase: str, _info: dict[str, int]) -> None:
    if phase == "stop":
        gc.freeze()
