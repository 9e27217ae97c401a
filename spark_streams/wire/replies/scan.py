"""Streams found by their names, page by page; in a cluster on every node.

A stream that moves to another node while both are looked through may be met on neither: all nodes are looked through
again until none has come to them meanwhile. Within a slot that moves key by key a stream is on one node or the other,
and whoever looks through the node that it comes to last finds it there.
"""

from __future__ import annotations

from collections.abc import Iterable

from spark_streams.model.keys import is_product_key, is_retry_or_returned
from spark_streams.wire.connection.connection import Argument, Connection, ReplyError
from spark_streams.wire.connection.server import Server

_SCAN_COUNT = 10_000  # keys a round trip
_FEW = 100_000  # keys that are looked through for a hint


def matching_streams(server: Server, pattern: str, but: Iterable[str]) -> list[str]:
    """The streams whose names match a Redis pattern, sorted; but: names to leave out.

    A name that is empty or not UTF-8 cannot be an option's value or a column's, and is left out. So is a name of the
    product (`rstream:…`), whoever made the stream: a query may write to that key at any time, and entries that wait for
    another try are read with the stream that they come from.
    """
    names: set[str] = set()
    for name in _scan(server, "MATCH", pattern):
        try:
            names.add(name.decode())
        except UnicodeDecodeError:
            continue
    return sorted(name for name in names.difference(but) if name and not is_product_key(name))


def list_streams(server: Server) -> list[bytes]:
    """The names of all streams in the database, sorted."""
    return sorted(_scan(server))


def without_beside(names: Iterable[bytes]) -> list[bytes]:
    """Those of these streams that users made: none that queries keep beside a stream for another try."""
    return [name for name in names if not is_retry_or_returned(name.decode("utf-8", "replace"))]


def streams_if_few(server: Server) -> list[str] | None:
    """The names of all streams, for a hint; None where the server has many keys, or the user may not look."""
    names: set[bytes] = set()
    pages = _FEW // _SCAN_COUNT
    for node in server.nodes():
        cursor: bytes | None = None
        while cursor != b"0":
            pages -= 1
            reply = node.pipeline([_page(cursor or b"0")])[0] if pages >= 0 else None
            if reply is None or isinstance(reply, ReplyError):
                return None
            cursor, page = reply
            names.update(page)
    return sorted(name.decode("utf-8", "replace") for name in names)


def matching_hashes(server: Server, pattern: str) -> list[bytes]:
    """The keys of hashes that match a Redis pattern, sorted."""
    return sorted(_scan(server, "MATCH", pattern, kind="hash"))


def _scan(server: Server, *condition: Argument, kind: str = "stream") -> set[bytes]:
    """SCAN … TYPE on every node, until the cursor is at its beginning again; more than once where there are
    several nodes, until that finds no more."""
    nodes = server.nodes()
    names = set().union(*[_scan_node(node, *condition, kind=kind) for node in nodes])
    while len(nodes) > 1:
        nodes = server.nodes()
        again = set().union(*[_scan_node(node, *condition, kind=kind) for node in nodes])
        if again <= names:
            break
        names |= again
    return names


def _scan_node(node: Connection, *condition: Argument, kind: str) -> set[bytes]:
    names: set[bytes] = set()
    cursor = b"0"
    while True:
        cursor, page = node.execute(*_page(cursor, *condition, kind=kind))
        names.update(page)
        if cursor == b"0":
            return names


def _page(cursor: bytes, *condition: Argument, kind: str = "stream") -> tuple[Argument, ...]:
    return ("SCAN", cursor, *condition, "COUNT", _SCAN_COUNT, "TYPE", kind)
