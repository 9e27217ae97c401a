"""Memory of streams, as the server estimates it from some of their radix tree nodes (MEMORY USAGE)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spark_streams.base.printable import name_text
from spark_streams.connector.errors import RStreamError
from spark_streams.connector.wire.connection.connection import ReplyError
from spark_streams.connector.wire.connection.server import Server


def stream_sizes(
    server: Server, keys: Sequence[str | bytes], refused: Callable[[RStreamError], object]
) -> dict[str, int]:
    """Return the bytes of each stream that exists. refused: receives the error if the user may not ask, and the streams
    after that have no size."""
    sizes: dict[str, int] = {}
    for part in (keys[:1], keys[1:]):  # the first one shows whether the user may ask
        commands = [("MEMORY", "USAGE", key) for key in part]
        for command, reply in zip(commands, server.pipeline(commands), strict=True):
            if isinstance(reply, ReplyError):
                refused(server.error_of(reply, command))
                return sizes
            if reply is not None:  # None: deleted since
                sizes[name_text(command[2])] = reply
    return sizes
