"""An engine put together: the core, and the commands that fill its command table. The core imports none of them."""

from __future__ import annotations

from collections.abc import Callable

from spark_streams.engine.commands import add_batch  # the package fills the command table
from spark_streams.engine.core import Engine, unix_ms


def new_engine(clock: Callable[[], int] = unix_ms) -> Engine:
    """An empty engine without sockets. `clock` gives Unix milliseconds."""
    return Engine(add_batch, clock)
