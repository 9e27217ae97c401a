"""Keys that queries keep beside a stream for a group: computed from the table in keys, and asked for by name.

They are the keys of queries whose consumers are in the group, and of a query with the default consumer. Of a group that
is gone only the latter are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from spark_streams.groups.group_snapshot import DEFAULT_QUERY, queries_among
from spark_streams.model.keys import key_beside, key_of_query, keys_of_consumer, keys_of_group
from spark_streams.options.values import MOST_DELAYS
from spark_streams.wire.connection.connection import ReplyError
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.reply_errors import is_no_group, is_no_such_key
from spark_streams.wire.replies.scan import matching_streams
from spark_streams.wire.replies.xinfo import consumers_in


@dataclass(frozen=True)
class Kept:
    """One key. kind: lease, committed …; consumer: whose, empty where it is the whole group's; stream: beside which it
    stands, empty: none."""

    key: bytes
    kind: str
    consumer: str = ""
    stream: str = ""


def find_kept(server: Server, streams_of: Mapping[str, Iterable[str]]) -> dict[str, list[Kept]]:
    """What is kept for groups on these streams, and `begun`, unless other streams need it. Raises ServerError."""
    pairs = [(group, stream) for group, streams in streams_of.items() for stream in streams]
    asked = [("XINFO", "CONSUMERS", stream, group) for group, stream in pairs]
    possible: dict[str, dict[bytes, Kept]] = {group: {} for group in streams_of}
    for (group, stream), command, reply in zip(pairs, asked, server.pipeline(asked), strict=True):
        if isinstance(reply, ReplyError) and not (is_no_group(reply) or is_no_such_key(reply)):
            raise server.error_of(reply, command)
        consumers = [] if isinstance(reply, ReplyError) else [one.text for one in consumers_in(reply)]
        of_group = [Kept(key, kind, stream=stream) for kind, key in keys_of_group(stream, group, MOST_DELAYS)]
        for query in queries_among(consumers, DEFAULT_QUERY):
            of_group += [Kept(key, kind, query, stream) for kind, key in keys_of_consumer(stream, group, query)]
            of_group.append(Kept(key_of_query("begun", group, query), "begun", query))
        possible[group] |= {one.key: one for one in of_group}
    keys = [key for some in possible.values() for key in some]
    there = {key for key, n in zip(keys, server.execute_all([("EXISTS", key) for key in keys]), strict=True) if n}
    return {
        group: [
            one
            for one in some.values()
            if one.key in there and not (one.kind == "begun" and _is_needed(server, one, group, streams_of[group]))
        ]
        for group, some in possible.items()
    }


def _is_needed(server: Server, begun: Kept, group: str, streams: Iterable[str]) -> bool:
    """Whether a query over a pattern, which has no checkpoint yet, has kept its first position on other streams of the
    pattern. `begun` holds the pattern."""
    pattern = server.execute("GET", begun.key) or b""
    others = matching_streams(server, pattern.decode("utf-8", "surrogateescape"), streams)
    firsts = [("EXISTS", key_beside(stream, "first", group, begun.consumer)) for stream in others]
    return any(server.execute_all(firsts))


def kept_by_stream(kept: Sequence[Kept], streams: Sequence[str]) -> dict[str, list[Kept]]:
    """What goes with a group on each of these streams. `begun` goes with the last one. Pure."""
    found = {stream: [one for one in kept if one.stream == stream] for stream in streams}
    found[streams[-1]] += [one for one in kept if one.kind == "begun"]
    return found


def entries_waiting(server: Server, kept: Iterable[Kept]) -> dict[bytes, int]:
    """Those of these streams that hold entries which wait for another try, and how many."""
    streams = [one.key for one in kept if one.kind in ("retry", "returned")]
    lengths = zip(streams, server.execute_all([("XLEN", key) for key in streams]), strict=True)
    return {key: length for key, length in lengths if length}


def what_waits(waiting: Mapping[bytes, int]) -> list[str]:
    """A group is gone, and these streams hold entries of it that wait for another try, or have come back. Pure."""
    return [
        f"{entries:,} entries of the group in {stream!r}, which wait for another try, stay there: a query with "
        f"retryDelay of a group of that name reads them; rstream dead list {stream} shows them"
        for stream, entries in ((key.decode("utf-8", "backslashreplace"), count) for key, count in waiting.items())
    ]
