"""A server whose streams and groups count what they were given: without these counts a query cannot tell what it lost.

Since Redis 7.0 (in every Valkey) a stream knows how many entries it ever had, and a group how many it has read. What
was trimmed unread, a stream that was made anew, a server that came back from an older state: these counts tell it.
"""

from __future__ import annotations

from spark_streams.errors import UnsupportedError
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.reply_errors import is_syntax_error, is_wrong_number_of_arguments

# Nobody has such a key, so nothing is set: whoever knows these words says so, and the others do not come so far (R43).
_QUESTION = ("XSETID", "rstream:none", "0-0", "ENTRIESADDED", "0", "MAXDELETEDID", "0-0")


def refuse_where_nothing_is_counted(server: Server) -> None:
    """Ask whether it knows these counts. Raises UnsupportedError, ServerUnreachableError."""
    [reply] = server.pipeline([_QUESTION])
    if is_wrong_number_of_arguments(reply) or is_syntax_error(reply):
        raise UnsupportedError(
            f"the server at {server.address} does not count what a stream was given and what a group has read (Redis "
            "before 7.0): entries that are trimmed before they are read would be lost in silence; read from Redis 7 or "
            "newer, or Valkey (writing, spark.read and rstream work on this one)"
        )
