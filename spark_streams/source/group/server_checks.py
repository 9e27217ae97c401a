"""Check the eviction policy: refuse a server that may drop keys which the query needs to lose no entries.

A query notices dropped streams, groups and pending lists at its next trigger. It does not notice all other keys:

- mode DEADLETTER: notes on entries that do not fit the schema, until they are dead letters (source.notes.task_notes);
- retryDelay: the streams in which entries wait for a retry (source.group.retries).
"""

from __future__ import annotations

import logging

from spark_streams.errors import UnsupportedError
from spark_streams.options.source_options import SourceOptions
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.eviction import drops_any_key, evicting_policy

_log = logging.getLogger("spark_streams.source")


def require_no_eviction(server: Server, options: SourceOptions) -> None:
    """Check the server's maxmemory-policy, if the user may read it. Raises UnsupportedError if it endangers this query,
    ServerUnreachableError."""
    policy = evicting_policy(server)
    if not drops_any_key(policy):
        return
    danger = f"the server at {server.address} drops any key when its memory is full (maxmemory-policy {policy})"
    if options.mode == "DEADLETTER":
        raise UnsupportedError(
            f"{danger}, also the notes on entries that are to become dead letters. Set the policy to noeviction (or "
            "volatile-lru), or choose another mode"
        )
    if options.retry_delay:
        raise UnsupportedError(
            f"{danger}, also entries that wait for a retry. Set the policy to noeviction (or volatile-lru), or read "
            "without retryDelay"
        )
    _log.warning("%s, also streams and groups. Set the policy to noeviction (or volatile-lru)", danger)
