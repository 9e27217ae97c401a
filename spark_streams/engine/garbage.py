"""Python's garbage collector, kept out of the clients' way.

What commands and connections leave behind is freed by its reference counts; of circles there is one for each consumer
of a group that is deleted. So what has survived one look is not looked at again while somebody asks for something: a
look takes as long as there are new objects, a fraction of a millisecond, however much the streams hold.
"""

from __future__ import annotations

import gc

_YOUNG = 1_000  # new containers from one look to the next
_NEVER = 1_000_000_000


def begin() -> None:
    """From now on only what is new is looked at."""
    sweep()
    gc.set_threshold(_YOUNG, _NEVER, _NEVER)
    gc.callbacks.append(_leave_out)


def sweep() -> None:
    """Look at everything, while nobody asks for anything."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def _leave_out(phase: str, _info: dict[str, int]) -> None:
    if phase == "stop":
        gc.freeze()
