"""Keys that queries keep beside a stream for a group (docs/keys.md): found by their names, as no group knows them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from spark_streams.keys import delays_key, key_beside, read_retry_stream
from spark_streams.wire.connection import Connection
from spark_streams.wire.server import Server

# Kinds of keys beside a stream, for a group and a consumer of it. Earlier versions wrote `claims`.
OF_A_CONSUMER = ("lease", "committed", "first", "start", "notes", "claims", "attempts", "tried", "failure")
_COUNT = 10_000  # keys a round trip
# Names are quoted: no colon stands in those of groups, consumers and an outbox's streams.
_BEGUN = re.compile(rb"rstream:begun:([^:]*):([^:]*)")
_OUTBOX = re.compile(rb"rstream:outbox:\{.*:([^:]*):([^:]*)", re.DOTALL)
_BESIDE = re.compile(rb"rstream:(%b):(\{.*):([^:]*):([^:]*)" % "|".join(OF_A_CONSUMER).encode(), re.DOTALL)


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
    """What is kept for a group: `find_kept_of` for one."""
    return find_kept_of(server, {group: streams})[group]


def find_kept_of(server: Server, streams_of: Mapping[str, Iterable[str]]) -> dict[str, list[Kept]]:
    """What is kept for groups, looked for once among all keys of the server.

    That is: keys beside these streams of each group; what goes with a group on any stream (`begun`); dead letters that
    were under way for these streams (`outbox`); streams in which entries wait for another try (`retry`, `returned`);
    and `first` of other streams, because it tells that `begun` is needed. Raises ServerReplyError and kin,
    NotPermittedError without +scan.
    """
    wanted = {group: set(streams) for group, streams in streams_of.items()}
    both = [(stream, group) for group, streams in wanted.items() for stream in streams]
    delays = {delays_key(stream, group): (stream, group) for stream, group in both}
    archives = {key_beside(stream, "archive", group): (stream, group) for stream, group in both}
    places = {key_beside(stream, "x"): stream for stream, _ in both}
    found: dict[str, list[Kept]] = {group: [] for group in wanted}
    for key in dict.fromkeys(key for node in server.nodes() for key in _scan(node)):
        if key in archives:
            stream, group = archives[key]
            found[group].append(Kept(key, "archive", stream=stream))
        elif key in delays:
            stream, group = delays[key]
            found[group].append(Kept(key, "delays", stream=stream))
        elif (retry := read_retry_stream(_as_text(key))) is not None:
            if retry.stream in wanted.get(retry.group, ()):
                kind = "returned" if retry.attempts is None else "retry"
                found[retry.group].append(Kept(key, kind, stream=retry.stream))
        elif match := _BEGUN.fullmatch(key):
            if (group := _text(match[1])) in wanted:
                found[group].append(Kept(key, "begun", _text(match[2])))
        elif match := _OUTBOX.fullmatch(key):
            group, stream = _text(match[1]), _text(match[2])
            if stream in wanted.get(group, ()):
                found[group].append(Kept(key, "outbox", stream=stream))
        elif (match := _BESIDE.fullmatch(key)) and (group := _text(match[3])) in wanted:
            stream = places.get(b"rstream:x:" + match[2], "")
            stream = stream if stream in wanted[group] else ""
            if stream or match[1] == b"first":
                found[group].append(Kept(key, match[1].decode(), _text(match[4]), stream))
    return found


def kept_by_stream(kept: Sequence[Kept], streams: Sequence[str]) -> dict[str, list[Kept]]:
    """What goes with a group on each of these streams. `begun` goes with the last one, unless a query over a pattern
    still needs it on other streams. Pure."""
    found = {stream: [one for one in kept if one.stream == stream] for stream in streams}
    firsts = {one.consumer for one in kept if one.kind == "first" and not one.stream}
    found[streams[-1]] += [one for one in kept if one.kind == "begun" and one.consumer not in firsts]
    return found


def entries_waiting(server: Server, kept: Iterable[Kept]) -> dict[bytes, int]:
    """Those of these streams that hold entries which wait for another try, and how many."""
    streams = [one.key for one in kept if one.kind in ("retry", "returned")]
    lengths = zip(streams, server.execute_all([("XLEN", key) for key in streams]), strict=True)
    return {key: length for key, length in lengths if length}


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
