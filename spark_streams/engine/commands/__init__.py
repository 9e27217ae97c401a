"""The commands, one file for each family. Importing this package fills the command table."""

# ruff: noqa: F401 (the modules are imported for the commands that they register)

from __future__ import annotations

from spark_streams.engine.command_table import COMMANDS, Command
from spark_streams.engine.commands import refusals, scripts
from spark_streams.engine.commands.server import (
    clients,
    connection,
    databases,
    debug,
    info,
    persistence,
    server,
    transactions,
)
from spark_streams.engine.commands.streams import (
    groups,
    idempotence,
    pending,
    reading,
    releasing,
    removing,
    streams,
    xinfo,
)
from spark_streams.engine.commands.streams.xadd_batch import add_batch
from spark_streams.engine.commands.values import dump, hashes, keys, lists, sets, strings

__all__ = ["COMMANDS", "Command", "add_batch"]
