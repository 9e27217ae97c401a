"""Check that the server counts the entries of streams and groups. Without these counts a query cannot notice losses.

Since Redis 7.0, and in every Valkey, a stream has the number of entries ever added, and a group the number it has read.
By these numbers the query notices entries trimmed unread, a stream created again, and a server in an older state.
"""

from __future__ import annotations

from spark_streams.errors import UnsupportedError
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.reply_errors import is_syntax_error, is_wrong_number_of_arguments

# The key does not exist, so nothing is set. A server without these arguments refuses the syntax first (R43).
_PROBE = ("XSETID", "rstream:none", "0-0", "ENTRIESADDED", "0", "MAXDELETEDID", "0-0")


def require_entry_counts(server: Server) -> None:
    """Raise UnsupportedError if the server does not have these counts, or ServerUnreachableError."""
    [reply] = server.pipeline([_PROBE])
    if is_wrong_number_of_arguments(reply) or is_syntax_error(reply):
        raise UnsupportedError(
            f"cannot read a stream from the server at {server.address}: Redis before 7.0 has no entries-added and "
            "entries-read, so lost entries could not be noticed. Use Redis 7.0 or later, or Valkey"
        )
