"""The rule for every command and option that takes names or patterns of streams: first the stream of that name.

orders[1]    the stream orders[1], if it exists; else the streams that the pattern matches, such as orders1
orders:*     the stream orders:*, if it exists; else orders:1, orders:2 …
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_streams.base.pattern import NamesAndPatterns, escape, is_pattern
from spark_streams.connector.keys import shards_key
from spark_streams.connector.wire.connection.connection import ReplyError
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.reply_errors import is_no_such_key, is_not_permitted, is_wrong_type
from spark_streams.connector.wire.replies.scan import matching_streams


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
