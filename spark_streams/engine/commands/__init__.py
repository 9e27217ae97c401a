"""The commands, one file for each family, and an engine with them: the core imports no command module."""

# ruff: noqa: F401 (the modules are imported for the commands that they register)

from __future__ import annotations

from collections.abc import Callable

from spark_streams.engine.command_table import COMMANDS, Command
from spark_streams.engine.commands import refused_commands, scripts
from spark_streams.engine.commands.server import administration, clients, debug, info, sessions
from spark_streams.engine.commands.streams import (
    pending_entries,
    reading,
    removing,
    stream_entries,
    stream_groups,
)
from spark_streams.engine.commands.streams.add_batch import add_batch
from spark_streams.engine.commands.values import dump_restore, key_commands, plain_values
from spark_streams.engine.core import Engine, unix_ms

__all__ = ["COMMANDS", "Command", "add_batch", "new_engine"]


def new_engine(clock: Callable[[], int] = unix_ms) -> Engine:
    """Return an empty engine without sockets. `clock` returns Unix milliseconds."""
    return Engine(add_batch, clock)
