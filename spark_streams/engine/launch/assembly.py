"""Creates an engine: the core, and the commands that fill its command table. The core imports no command module."""

from __future__ import annotations

from collections.abc import Callable

from spark_streams.engine.clock import unix_ms
from spark_streams.engine.commands import add_batch  # the package fills the command table
from spark_streams.engine.core import Engine


def new_engine(clock: Callable[[], int] = unix_ms) -> Engine:
    """Return an empty engine without sockets. `clock` returns Unix milliseconds."""
    return Engine(add_batch, clock)
