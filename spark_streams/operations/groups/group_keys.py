"""Keys of a group's queries beside a stream: computed from the table in connector/keys.py, and looked up by name.

These are the keys of queries whose consumers are in the group, and of a query with the default consumer. If the group
does not exist any more, only the latter are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from spark_streams.connector.keys import key_beside, key_of_query, keys_of_consumer, keys_of_group
from spark_streams.connector.options.parsers import MOST_DELAYS
from spark_streams.connector.wire.connection.connection import ReplyError
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.reply_errors import is_no_group, is_no_such_key
from spark_streams.connector.wire.replies.scan import matching_streams
from spark_streams.connector.wire.replies.xinfo import consumers_in
from spark_streams.operations.groups.group_snapshot import DEFAULT_QUERY, queries_among


@dataclass(frozen=True)
class GroupKey:
    """One key. kind: lease, committed …; consumer: empty for a key of the group as a whole; stream: the stream beside
    which it is, empty if there is none."""

    key: bytes
    kind: str
    consumer: str = ""
    stream: str = ""


def find_group_keys(server: Server, streams_of: Mapping[str, Iterable[str]]) -> dict[str, list[GroupKey]]:
    """Return the keys of groups on these streams, and `begun`, unless other streams need it. Raises ServerError."""
    pairs = [(group, stream) for group, streams in streams_of.items() for stream in streams]
    commands = [("XINFO", "CONSUMERS", stream, group) for group, stream in pairs]
    possible: dict[str, dict[bytes, GroupKey]] = {group: {} for group in streams_of}
    replies = server.execute_all(commands, is_no_group, is_no_such_key)
    for (group, stream), reply in zip(pairs, replies, strict=True):
        consumers = [] if isinstance(reply, ReplyError) else [info.text for info in consumers_in(reply)]
        of_group = [GroupKey(key, kind, stream=stream) for kind, key in keys_of_group(stream, group, MOST_DELAYS)]
        for query in queries_among(consumers, DEFAULT_QUERY):
            of_group += [GroupKey(key, kind, query, stream) for kind, key in keys_of_consumer(stream, group, query)]
            of_group.append(GroupKey(key_of_query("begun", group, query), "begun", query))
        possible[group] |= {group_key.key: group_key for group_key in of_group}
    keys = [key for by_key in possible.values() for key in by_key]
    existing = {key for key, n in zip(keys, server.execute_all([("EXISTS", key) for key in keys]), strict=True) if n}
    return {
        group: [
            group_key
            for group_key in by_key.values()
            if group_key.key in existing
            and not (group_key.kind == "begun" and _is_needed(server, group_key, group, streams_of[group]))
        ]
        for group, by_key in possible.items()
    }


def _is_needed(server: Server, begun: GroupKey, group: str, streams: Iterable[str]) -> bool:
    """Whether a query over a pattern without a checkpoint yet has a first position on other streams of the pattern.
    `begun` holds the pattern."""
    pattern = server.execute("GET", begun.key) or b""
    other_streams = matching_streams(server, pattern.decode("utf-8", "surrogateescape"), streams)
    firsts = [("EXISTS", key_beside(stream, "first", group, begun.consumer)) for stream in other_streams]
    return any(server.execute_all(firsts))


def split_by_stream(group_keys: Sequence[GroupKey], streams: Sequence[str]) -> dict[str, list[GroupKey]]:
    """Return the keys by stream; `begun` is listed for the last stream. Pure."""
    by_stream = {stream: [group_key for group_key in group_keys if group_key.stream == stream] for stream in streams}
    by_stream[streams[-1]] += [group_key for group_key in group_keys if group_key.kind == "begun"]
    return by_stream


def count_waiting(server: Server, group_keys: Iterable[GroupKey]) -> dict[bytes, int]:
    """Return the keys that are streams with entries waiting for a retry, and the number of entries."""
    streams = [group_key.key for group_key in group_keys if group_key.kind in ("retry", "returned")]
    lengths = zip(streams, server.execute_all([("XLEN", key) for key in streams]), strict=True)
    return {key: length for key, length in lengths if length}


def waiting_lines(waiting: Mapping[bytes, int]) -> list[str]:
    """Return a line for each stream with entries of a deleted group that wait for a retry or are returned. Pure."""
    return [
        f"{entries:,} entries of the group in {stream!r} wait for a retry, and are not deleted. A query with "
        f"retryDelay and a group of the same name reads them. To show them: rstream dead list {stream}"
        for stream, entries in ((key.decode("utf-8", "backslashreplace"), count) for key, count in waiting.items())
    ]
