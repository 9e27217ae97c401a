"""Lists streams by name, page by page; in a cluster on every node. One node of a cluster is refused: it has a part.

A stream that moves to another node during the scan may be listed on neither. Therefore all nodes are scanned again
until no stream was added meanwhile. Within a slot that moves key by key a stream is on one of two nodes, and the scan
of the target node finds it if that node is scanned last.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from spark_streams.connector.keys import is_product_key, is_retry_or_returned
from spark_streams.connector.wire.connection.connection import Argument, Connection
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.reply_errors import is_forbidden

_SCAN_COUNT = 25_000  # keys per round trip, 5 ms of the server's time
_FEW = 100_000  # keys that are scanned for a suggestion
MOST_STREAMS = 10_000  # of a pattern
LONGEST_NAME = 1_024  # bytes of a name of these

Name = TypeVar("Name", str, bytes)


def matching_streams(server: Server, pattern: str, but: Iterable[str]) -> list[str]:
    """Return the streams whose names match a Redis pattern, sorted; but: names to leave out.

    A name that is empty or not UTF-8 cannot be an option's value or a column's, and is left out. So is a name of the
    product (`rstream:…`), even if another client created it: a query may write to that key at any time, and entries
    waiting for retry are read with the stream from which they come.
    """
    names = readable(matching_keys(server, pattern))
    return sorted(name for name in names.difference(but) if name and not is_product_key(name))


@dataclass(frozen=True)
class Bounded(Generic[Name]):
    """Streams that a pattern selects. streams: sorted; too_long, too_many: how many are left out, because of their
    names and because of their number."""

    streams: list[Name]
    too_long: int = 0
    too_many: int = 0

    @property
    def left_out(self) -> str:
        """How many streams are left out, and why; empty if none is."""
        reasons = {
            f"beyond the first {len(self.streams):,}": self.too_many,
            f"with names of more than {LONGEST_NAME:,} bytes": self.too_long,
        }
        return " and ".join(f"{count:,} {reason}" for reason, count in reasons.items() if count)


def bounded(
    names: Iterable[Name],
    keep: Callable[[Sequence[Name]], Container[Name]] = lambda names: (),
    most: int = MOST_STREAMS,
) -> Bounded[Name]:
    """Return which of these streams a pattern selects: any client that may create keys can create a million streams, or
    names of megabytes.

    A name of more than LONGEST_NAME bytes is none of a pattern. Of more than `most` streams, those that are used
    already stay, and the others follow by their names. keep: returns those that are used; it is called only then.
    """
    found = list(names)
    short = sorted(name for name in found if _size(name) <= LONGEST_NAME)
    chosen = short
    if len(short) > most:
        kept = keep(short)
        first = sorted(short, key=lambda name: name not in kept)  # a stable sort
        chosen = sorted(first[:most])
    return Bounded(chosen, len(found) - len(short), len(short) - len(chosen))


def _size(name: str | bytes) -> int:
    return len(name if isinstance(name, bytes) else name.encode("utf-8", "surrogateescape"))


def matching_keys(server: Server, pattern: str) -> set[bytes]:
    """Return the names of all streams that match a Redis pattern, as bytes."""
    return _scan(server, "MATCH", pattern)


def readable(names: Iterable[bytes]) -> set[str]:
    """Return those of these names that are UTF-8, as text."""
    texts = set()
    for name in names:
        with contextlib.suppress(UnicodeDecodeError):
            texts.add(name.decode())
    return texts


def list_streams(server: Server) -> list[bytes]:
    """Return the names of all streams in the database, sorted."""
    return sorted(_scan(server))


def without_retry_streams(names: Iterable[bytes]) -> list[bytes]:
    """Return the streams that users created, without those in which queries store entries waiting for retry."""
    return [name for name in names if not is_retry_or_returned(name.decode("utf-8", "replace"))]


def streams_if_few(server: Server) -> list[str] | None:
    """Return the names of all streams, for a suggestion; None if the server has many keys, or SCAN is not permitted."""
    names: set[bytes] = set()
    pages = _FEW // _SCAN_COUNT
    for node in server.nodes():
        cursor: bytes | None = None
        while cursor != b"0":
            pages -= 1
            if pages < 0:
                return None
            [reply] = node.execute_all([_page(cursor or b"0")], is_forbidden)
            if is_forbidden(reply):
                return None
            cursor, page = reply
            names.update(page)
    return sorted(name.decode("utf-8", "replace") for name in names)


def matching_strings(server: Server, pattern: str | bytes) -> list[bytes]:
    """Return the keys of strings that match a Redis pattern, sorted."""
    return sorted(_scan(server, "MATCH", pattern, kind="string"))


def _scan(server: Server, *condition: Argument, kind: str = "stream") -> set[bytes]:
    """Run SCAN … TYPE on every node until the cursor is 0 again; with several nodes, repeat until no key is added."""
    nodes = server.nodes()
    for node in nodes:
        node.require_all_keys()
    names = set().union(*[_scan_node(node, *condition, kind=kind) for node in nodes])
    while len(nodes) > 1:
        nodes = server.nodes()
        rescanned = set().union(*[_scan_node(node, *condition, kind=kind) for node in nodes])
        if rescanned <= names:
            break
        names |= rescanned
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
