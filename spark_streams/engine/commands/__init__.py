"""The commands, one file a family; importing this package fills the command table."""

from __future__ import annotations

from spark_streams.engine.command_table import COMMANDS, Command
from spark_streams.engine.commands import (  # noqa: F401 - imported for what they register
    clients,
    connection,
    databases,
    dump,
    groups,
    hashes,
    idempotence,
    info,
    keys,
    lists,
    pending,
    persistence,
    reading,
    refusals,
    releasing,
    removing,
    server,
    sets,
    streams,
    strings,
    transactions,
    xinfo,
)
from spark_streams.engine.commands.xadd_batch import add_batch

__all__ = ["COMMANDS", "Command", "add_batch"]
