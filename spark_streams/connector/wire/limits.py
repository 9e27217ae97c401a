"""Limits of a server for one argument and one request.

    proto-max-bulk-len           bytes of one argument (default 512 MB)
    client-query-buffer-limit    bytes of a request, or of a transaction, that is being received (default 1 GB)

The server closes the connection of a client that exceeds them (FACTS R22), and retries would never succeed.
"""

from __future__ import annotations

from spark_streams.connector.errors import RStreamError
from spark_streams.connector.wire.address.address import Address
from spark_streams.connector.wire.connect import connect
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.reply_errors import is_forbidden

SMALL = 1 << 20  # bytes that every server accepts: neither limit can be lower
NAMES = ("proto-max-bulk-len", "client-query-buffer-limit")


def fetch_limits(server: Server) -> tuple[int, int] | None:
    """Return both limits, in this order; None if the user may not read them, or the server has no CONFIG. Raises
    ServerError."""
    replies = server.execute_all([("CONFIG", "GET", name) for name in NAMES], is_forbidden)
    if any(is_forbidden(reply) or len(reply) != 2 for reply in replies):
        return None
    return int(replies[0][1]), int(replies[1][1])


def find_exceeded_limit(address: Address, argument: int, request: int) -> str:
    """Return the limit that an argument and a request of these sizes exceed, for a message; empty if none, or unknown.

    Call it after a connection was lost: it opens a connection of its own.
    """
    if max(argument, request) <= SMALL:
        return ""
    try:
        with connect(address) as server:
            limits = fetch_limits(server)
    except RStreamError:
        return ""  # the server is unavailable; its next user reports that
    if limits is None:
        return ""
    sizes = zip(NAMES, (argument, request), limits, strict=True)
    return next((f"takes {limit} ({name})" for name, size, limit in sizes if size > limit), "")
