"""A request (one command, or many as one), the limits of a request, and its errors.

Sizes are limited as in Redis: 2^31-1 arguments, 512 MB each (proto-max-bulk-len), 64 KB for an inline command, 1 GB for
an unfinished request (client-query-buffer-limit). Before AUTH the limits are much smaller.
"""

from __future__ import annotations

from typing import TypeAlias

from spark_streams.engine.resp.xadd_batch import XaddBatch

Request: TypeAlias = list[bytes] | XaddBatch  # one command, or many as one

MAX_ARGUMENTS = 2**31 - 1
MAX_INLINE = 64 * 1024


class ProtocolError(Exception):
    """The connection's bytes are not valid RESP: send `-ERR Protocol error: <text>` and close."""


class TooLongError(ProtocolError):
    """An unfinished request is longer than client-query-buffer-limit: close without a reply, as Redis does."""


class RequestLimits:
    """Limits of one connection. bulk: bytes of an argument; held: bytes of an unfinished request."""

    def __init__(
        self,
        bulk: int = 512 * 1024 * 1024,
        held: int = 1 << 30,
        arguments: int = MAX_ARGUMENTS,
        unauthenticated: bool = False,
    ) -> None:
        self.bulk = bulk
        self.held = held
        self.arguments = arguments
        self.unauthenticated = unauthenticated


def may_log_in(request: Request) -> bool:
    """Whether this command may change the limits of the following ones."""
    return isinstance(request, list) and request[0].lower() in (b"auth", b"hello")


BEFORE_AUTH = RequestLimits(bulk=16384, arguments=10, unauthenticated=True)
