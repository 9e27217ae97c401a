"""Which streams there are.

They are listed by name, page by page; in a cluster on every node. One node of a cluster is refused: it has a part.

A stream that moves to another node during the scan may be listed on neither. Therefore all nodes are scanned again
until no stream was added meanwhile. Within a slot that moves key by key a stream is on one of two nodes, and the scan
of the target node finds it if that node is scanned last.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from spark_streams.base.pattern import NamesAndPatterns, escape, is_pattern
from spark_streams.connector.errors import StreamMissingError
from spark_streams.connector.keys import is_product_key, is_retry_or_returned, shards_key
from spark_streams.connector.wire.connection import Argument, Connection, ReplyError, Server
from spark_streams.connector.wire.replies import is_forbidden, is_no_such_key, is_not_permitted, is_wrong_type

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


# -- messages about missing streams: the name may be misspelt, so they suggest the nearest one -------------------------

# The suggestion costs a SCAN. There is none if the server has many keys, or if the user may not list them.

_SHOWN = 5  # streams that are listed one by one
_COMPARED = 10_000  # names, which take some tenths of a second

ABSENT = "does not exist yet"
CREATE = "wait for it with createStreams=true"  # remedy that a user may add to `missing`
WAITING = "waiting for its first entry"
SILENT = "has never had an entry"  # a query with a misspelt name may have created it


def lines_of(server: Server, why: Mapping[str, str], then: str, but: Collection[str] = ()) -> list[str]:
    """Return a line for each stream without entries.

    why: ABSENT or SILENT, by stream. then: what the query does about it.

    but: streams that are never read. Raises ServerUnreachableError.
    """
    shown = list(why)[:_SHOWN]
    hints = _hints(server, shown, {*why, *but})
    lines = [f"stream {stream!r} at {server.address} {why[stream]}; {then}{hints[stream]}" for stream in shown]
    if len(why) > _SHOWN:
        lines.append(f"{len(why) - _SHOWN} more streams at {server.address} have no entry yet")
    return lines


def nothing_matches(server: Server, pattern: str, but: Collection[str] = ()) -> str:
    """Return a line for a pattern without a stream to read. Raises ServerUnreachableError."""
    hint = _hints(server, [pattern], but)[pattern]
    return f"no stream with entries at {server.address} matches {pattern!r}{hint}"


def missing(server: Server, stream: str, remedy: str) -> StreamMissingError:
    """Return the error for a missing stream that the query does not wait for. Raises ServerUnreachableError."""
    hint = _hints(server, [stream], [stream])[stream]
    return StreamMissingError(
        f"stream {stream!r} does not exist at {server.address}{hint}; check its name and the url's database, or "
        + remedy
        + (" (embedded: forgets its streams when it ends)" if server.address.forgets else "")
    )


def suggest_names(server: Server, requested: Sequence[str], but: Collection[str] = ()) -> dict[str, str]:
    """Return the nearest existing stream for each name, if there is a near one. but: names not to suggest.

    Raises ServerUnreachableError.
    """
    existing_streams = streams_if_few(server) if requested else None
    if existing_streams is None or len(existing_streams) > _COMPARED:
        return {}
    names = {name.lower(): name for name in existing_streams if name not in but}
    matches = {name: difflib.get_close_matches(name.lower(), names, n=1) for name in requested}
    return {name: names[near[0]] for name, near in matches.items() if near}


def hint_of_names(server: Server, requested: Sequence[str], command: str = "rstream streams") -> str:
    """Return a question with the nearest existing streams, or which command lists the streams."""
    return hint_of_near(suggest_names(server, requested, requested).values(), command)


def hint_of_near(near: Collection[str], command: str = "rstream streams") -> str:
    """Return the same for names that are known to be the nearest; there may be none."""
    return f"did you mean {', '.join(map(repr, near))}?" if near else f"{command} lists the streams"


def _hints(server: Server, requested: Sequence[str], but: Collection[str]) -> dict[str, str]:
    """Return ` (did you mean …?)` or nothing for each name."""
    near = suggest_names(server, requested, but)
    return {name: f" (did you mean {near[name]!r}?)" if name in near else "" for name in requested}


# -- names or patterns of streams: first the stream of that name -------------------------------------------------------

# orders[1]    the stream orders[1], if it exists; else the streams that the pattern matches, such as orders1
# orders:*     the stream orders:*, if it exists; else orders:1, orders:2 …


def names_and_patterns(server: Server, words: Sequence[str], exact: bool = False) -> NamesAndPatterns:
    """Divide words into names and patterns of streams. exact: all are names. Raises ServerError."""
    doubtful = [] if exact else [word for word in dict.fromkeys(words) if is_pattern(word)]
    if not doubtful:
        return NamesAndPatterns(frozenset(words))
    return NamesAndPatterns.divide(words, existing_streams(server, doubtful))


def existing_streams(server: Server, names: Sequence[str]) -> set[str]:
    """Return those of these names that are streams, sharded ones included. Raises ServerError."""
    # XINFO rather than EXISTS: a user with rights for stream commands only may send it.
    commands = [("XINFO", "STREAM", name) for name in names]
    replies = server.execute_all(commands, is_no_such_key, is_wrong_type, is_not_permitted)
    kinds = server.execute_all([("TYPE", shards_key(name)) for name in names], is_not_permitted)
    existing = set()
    for name, reply, kind in zip(names, replies, kinds, strict=True):
        if is_not_permitted(reply):  # no right to this key, but the pattern may match streams with rights
            is_stream = bool(matching_streams(server, escape(name), ()))
        else:
            is_stream = not isinstance(reply, ReplyError)
        if is_stream or kind == b"hash":
            existing.add(name)
    return existing
