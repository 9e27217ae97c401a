"""Small replies: an error among many, and the name-value lists of XINFO."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hiredis

from spark_streams.wire.connection import ReplyError


def first_error(replies: memoryview) -> tuple[int, str] | None:
    """(position, text) of the first error among replies back to back; None where all is well.

    The replies must be ids, integers or statuses: none of these has a line that starts with `-`.
    """
    raw = bytes(replies)
    if not raw.startswith(b"-") and b"\n-" not in raw:
        return None
    reader = hiredis.Reader(replyError=ReplyError)
    reader.feed(raw)
    position = 0
    while True:
        reply = reader.gets()
        if reply is False:
            return None
        if isinstance(reply, ReplyError):
            return position, str(reply)
        position += 1


def pairs(reply: Sequence[Any]) -> dict[bytes, Any]:
    """`[name, value, name, value …]`, as RESP2 writes a map, by name."""
    return dict(zip(reply[0::2], reply[1::2], strict=True))


def info(reply: bytes) -> dict[str, str]:
    """INFO's `name:value` lines, by name."""
    lines = reply.decode("utf-8", "replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))
