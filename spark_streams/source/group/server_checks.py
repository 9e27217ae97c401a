"""A server that drops keys when its memory is full: refused where a query would lose entries by that in silence.

Streams, groups and pending lists that are dropped are missed at the next look. Keys beside them are not all missed:

- mode DEADLETTER: the note of an entry that does not fit the schema, until it is a letter (source.notes.task_notes);
- retryDelay: the streams in which entries wait for another try (source.group.retries);
- noAck: notes on how many entries were read, by which it is told what was lost (source.notes.rows_read).
"""

from __future__ import annotations

import logging

from spark_streams.errors import UnsupportedError
from spark_streams.options.source_options import SourceOptions
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.eviction import drops_any_key, evicting_policy

_log = logging.getLogger("spark_streams.source")


def refuse_where_keys_are_needed(server: Server, options: SourceOptions) -> None:
    """Ask the server, if one may. Raises UnsupportedError, ServerUnreachableError."""
    policy = evicting_policy(server)
    if not drops_any_key(policy):
        return
    danger = f"the server at {server.address} drops any key when its memory is full (maxmemory-policy {policy})"
    if options.mode == "DEADLETTER":
        raise UnsupportedError(
            f"{danger}, also the notes on entries that are to become dead letters: set it to noeviction (or "
            "volatile-lru), or choose another mode"
        )
    if options.retry_delay:
        raise UnsupportedError(
            f"{danger}, also what waits for another try: set it to noeviction (or volatile-lru), or read without "
            "retryDelay"
        )
    if options.no_ack:
        raise UnsupportedError(
            f"{danger}, also notes by which lost entries are noticed: set it to noeviction (or volatile-lru), "
            "or read without noAck"
        )
    _log.warning("%s, streams and groups too: set it to noeviction (or volatile-lru)", danger)
