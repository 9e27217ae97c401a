"""Checks of the server when a query starts: what it must have, so that the query notices every loss.

Counts. Since Redis 7.0, and in every Valkey, a stream has the number of entries ever added, and a group the number it
has read. By these numbers the query notices entries trimmed unread, a stream created again, and a server in an older
state.

Eviction. A query notices dropped streams, groups and pending lists at its next trigger. It does not notice all other
keys:

- mode DEADLETTER: notes on entries that do not fit the schema, until they are dead letters (source.task.notes);
- retryDelay: the streams in which entries wait for a retry (source.group.retries).
"""

from __future__ import annotations

import logging

from spark_streams.connector.errors import UnsupportedError
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.replies import (
    is_forbidden,
    is_no_such_key,
    is_out_of_memory,
    is_syntax_error,
    is_wrong_number_of_arguments,
)
from spark_streams.connector.wire.server_limits import drops_any_key, evicting_policy

_log = logging.getLogger("spark_streams.connector.source")

# The key does not exist, so nothing is set. A server without these arguments refuses the syntax first (R43).
_PROBE = ("XSETID", "rstream:none", "0-0", "ENTRIESADDED", "0", "MAXDELETEDID", "0-0")


def require_entry_counts(server: Server) -> None:
    """Raise UnsupportedError if the server does not have these counts, or ServerError. It is believed to have them if
    the user may not ask (+xsetid), or if its memory is full: reading goes on, and makes room."""
    lacks_counts = (is_wrong_number_of_arguments, is_syntax_error)
    [reply] = server.execute_all([_PROBE], is_no_such_key, is_forbidden, is_out_of_memory, *lacks_counts)
    if any(is_lack(reply) for is_lack in lacks_counts):
        raise UnsupportedError(
            f"cannot read a stream from the server at {server.address}: Redis before 7.0 has no entries-added and "
            "entries-read, so lost entries could not be noticed. Use Redis 7.0 or later, or Valkey"
        )


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
