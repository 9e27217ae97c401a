"""Small replies: raw bytes to values, the errors among them, and lists of names and values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import hiredis

from spark_streams.connector.wire.connection.connection import Reply, ReplyError


def each_reply(raw: bytes | memoryview) -> Iterator[Reply]:
    """Yield the replies in a row as Python values; error replies stay values.

    Raises hiredis.ProtocolError at the first byte that belongs to no reply.
    """
    reader = hiredis.Reader(replyError=ReplyError)
    reader.feed(raw)  # type: ignore[arg-type]  # it takes any buffer
    while (reply := reader.gets()) is not False:
        yield reply


def parse_replies(raw: bytes | memoryview) -> list[Reply]:
    """Return all replies."""
    return list(each_reply(raw))


def find_errors(replies: Sequence[Reply]) -> list[tuple[int, ReplyError]]:
    """Return (position, error) of every error reply."""
    return [(position, reply) for position, reply in enumerate(replies) if isinstance(reply, ReplyError)]


def may_hold_errors(raw: bytes) -> bool:
    """Whether there can be an error reply among these.

    Fast, and correct for replies that are IDs, integers or statuses: none of them has a line that starts with `-`.
    """
    return raw.startswith(b"-") or b"\n-" in raw


def milliseconds(reply: Sequence[bytes]) -> int:
    """Return the server's time in milliseconds since the epoch, from the reply to TIME."""
    return int(reply[0]) * 1000 + int(reply[1]) // 1000


def pairs(reply: Sequence[Reply]) -> dict[bytes, Reply]:
    """Return `[name, value, name, value …]`, RESP2's form of a map, by name."""
    items = iter(reply)
    return dict(zip(items, items, strict=True))


def info(reply: bytes) -> dict[str, str]:
    """Return INFO's `name:value` lines, by name."""
    lines = reply.decode("utf-8", "replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))
