"""What a server takes in one argument and in one request.

    proto-max-bulk-len           bytes of one argument (512 MB where nobody has changed it)
    client-query-buffer-limit    bytes of a request, or of a transaction, that it is still taking in (1 GB)

It closes the connection to whoever goes beyond (FACTS R22), and trying again would go on for ever.
"""

from __future__ import annotations

from spark_streams.errors import RStreamError
from spark_streams.wire.address.address import Address
from spark_streams.wire.connect import connect
from spark_streams.wire.connection.connection import ReplyError
from spark_streams.wire.connection.server import Server

SMALL = 1 << 20  # bytes that every server takes: neither can be set lower
NAMES = ("proto-max-bulk-len", "client-query-buffer-limit")


def ask_limits(server: Server) -> tuple[int, int] | None:
    """Both, in this order; None where that is not allowed (CONFIG is for administrators). Raises ServerError."""
    replies = server.pipeline([("CONFIG", "GET", name) for name in NAMES])
    if any(isinstance(reply, ReplyError) or len(reply) != 2 for reply in replies):
        return None
    return int(replies[0][1]), int(replies[1][1])


def beyond(address: Address, argument: int, request: int) -> str:
    """Which limit of the server an argument and a request of so many bytes exceed, for a message; empty where neither
    does, or the server does not say. To be asked when a connection was lost: it makes one of its own."""
    if max(argument, request) <= SMALL:
        return ""
    try:
        with connect(address) as server:
            known = ask_limits(server)
    except RStreamError:
        return ""  # it is away, which whoever needs it will say
    if known is None:
        return ""
    sizes = zip(NAMES, (argument, request), known, strict=True)
    return next((f"takes {most} ({name})" for name, size, most in sizes if size > most), "")
