"""Keys that queries keep beside a stream for a group (docs/keys.md): found by their names, as no group knows them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import quote, unquote_to_bytes

from spark_streams.keys import delays_key, key_beside, read_retry_stream
from spark_streams.wire.connection import Connection
from spark_streams.wire.server import Server

# Kinds of keys beside a stream, for a group and a consumer of it.
OF_A_CONSUMER = ("lease", "committed", "first", "start", "notes", "claims", "attempts", "failure")
_COUNT = 10_000  # keys a round trip


@dataclass(frozen=True)
class Kept:
    """One key. kind: lease, committed …; consumer: whose, empty where it is the whole group's; stream: beside which it
    stands, or of which it speaks; empty: none."""

    key: bytes
    kind: str
    consumer: str = ""
    stream: str = ""


def keys_of_consumer(stream: str, group: str, consumer: str) -> list[bytes]:
    """All that there may be of a consumer beside a stream."""
    return [key_beside(stream, kind, group, consumer) for kind in OF_A_CONSUMER]


def find_kept(server: Server, group: str, streams: Iterable[str]) -> list[Kept]:
    """What is kept for a group, looked for among all keys of the server: those beside these streams; what goes with the
    group on any stream (`begun`); dead letters that were under way for these streams (`outbox`); streams in which
    entries wait for another try (`retry`, `returned`); and `first` of other streams, which tell that `begun` is of use.
    Raises ServerReplyError and kin, NotPermittedError without +scan."""
    wanted = set(streams)
    named = quote(group, safe="").encode()
    beside = [(kind, re.compile(_beside(kind, named), re.DOTALL)) for kind in OF_A_CONSUMER]
    begun = re.compile(rb"rstream:begun:%b:([^:]*)" % re.escape(named))
    outbox = re.compile(rb"rstream:outbox:\{.*:%b:([^:]*)" % re.escape(named), re.DOTALL)
    delays = {delays_key(stream, group): stream for stream in wanted}
    archives = {key_beside(stream, "archive", group): stream for stream in wanted}
    places = {key_beside(stream, "x"): stream for stream in wanted}
    found = []
    for key in dict.fromkeys(key for node in server.nodes() for key in _scan(node)):
        if key in archives:
            found.append(Kept(key, "archive", stream=archives[key]))
        elif key in delays:
            found.append(Kept(key, "delays", stream=delays[key]))
        elif (retry := read_retry_stream(_as_text(key))) is not None:
            if retry.stream in wanted and retry.group == group:
                found.append(Kept(key, "returned" if retry.attempts is None else "retry", stream=retry.stream))
        elif match := begun.fullmatch(key):
            found.append(Kept(key, "begun", _text(match[1])))
        elif match := outbox.fullmatch(key):
            if (stream := _text(match[1])) in wanted:
                found.append(Kept(key, "outbox", stream=stream))
        else:
            for kind, pattern in beside:
                if match := pattern.fullmatch(key):
                    stream = places.get(b"rstream:x:" + match[1], "")
                    if stream or kind == "first":
                        found.append(Kept(key, kind, _text(match[2]), stream))
    return found


def entries_waiting(server: Server, kept: Iterable[Kept]) -> dict[bytes, int]:
    """Those of these streams that hold entries which wait for another try, and how many."""
    streams = [one.key for one in kept if one.kind in ("retry", "returned")]
    lengths = zip(streams, server.execute_all([("XLEN", key) for key in streams]), strict=True)
    return {key: length for key, length in lengths if length}


def _beside(kind: str, group: bytes) -> bytes:
    """The form of key_beside: the stream's part, the consumer's."""
    return rb"rstream:%b:(\{.*):%b:([^:]*)" % (kind.encode(), re.escape(group))


def _scan(node: Connection) -> Iterator[bytes]:
    cursor = b"0"
    while True:
        cursor, page = node.execute("SCAN", cursor, "MATCH", "rstream:*", "COUNT", _COUNT)
        yield from page
        if cursor == b"0":
            return


def _text(name: bytes) -> str:
    return _as_text(unquote_to_bytes(name))


def _as_text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
