"""Streams found by their names, page by page."""

from __future__ import annotations

from collections.abc import Iterable

from spark_streams.wire.connection import Argument, Connection, ReplyError

_SCAN_COUNT = 10_000  # keys a round trip
_FEW = 100_000  # keys that are looked through for a hint


def matching_streams(server: Connection, pattern: str, but: Iterable[str]) -> list[str]:
    """The streams whose names match a Redis pattern, sorted; but: names to leave out.

    A name that is not UTF-8 cannot be an option's value or a column's, and is left out.
    """
    names: set[str] = set()
    for name in _scan(server, "MATCH", pattern):
        try:
            names.add(name.decode())
        except UnicodeDecodeError:
            continue
    return sorted(names - set(but))


def list_streams(server: Connection) -> list[bytes]:
    """The names of all streams in the database, sorted."""
    return sorted(_scan(server))


def streams_if_few(server: Connection) -> list[str] | None:
    """The names of all streams, for a hint; None where the server has many keys, or the user may not look."""
    names: set[bytes] = set()
    cursor = b"0"
    for _ in range(_FEW // _SCAN_COUNT):
        reply = server.pipeline([_page(cursor)])[0]
        if isinstance(reply, ReplyError):
            return None
        cursor, page = reply
        names.update(page)
        if cursor == b"0":
            return sorted(name.decode("utf-8", "replace") for name in names)
    return None


def _scan(server: Connection, *condition: Argument) -> set[bytes]:
    """SCAN … TYPE stream, until the cursor is at its beginning again."""
    names: set[bytes] = set()
    cursor = b"0"
    while True:
        cursor, page = server.execute(*_page(cursor, *condition))
        names.update(page)
        if cursor == b"0":
            return names


def _page(cursor: bytes, *condition: Argument) -> tuple[Argument, ...]:
    return ("SCAN", cursor, *condition, "COUNT", _SCAN_COUNT, "TYPE", "stream")
