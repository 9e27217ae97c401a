"""Streams of a pattern that are missing: their keys are deleted, unless entries wait for a retry.

    1. The stream is missing, and the checkpoint no longer names it (group.remedies).
    2. Nothing waits for a retry, and the group has acknowledged all returned entries (is_idle). The next offset does
       not name the stream of returned entries.
    3. The checkpoint does not name it. One transaction deletes all keys beside the missing stream (forget).

A run that is killed between 2 and 3 leaves the keys. They are small, and `rstream groups delete` removes them.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_streams.connector.keys import delays_key, keys_of_consumer, origins_key, retry_stream, returned_stream
from spark_streams.connector.options.parsers import MOST_DELAYS
from spark_streams.connector.source.membership import Membership
from spark_streams.connector.wire.connection.connection import Connection, Reply
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.multi_exec import transact
from spark_streams.connector.wire.replies.reply_errors import is_no_group

_KINDS = ("committed", "notes", "missing")  # not the lease, which the next renewal removes


def is_idle(server: Server, member: Membership, stream: str) -> bool:
    """Whether a stream is missing, and no entry of it waits for a retry or is returned. Raises ServerError."""
    return _has_nothing(_state(server.connection_for(stream), member, stream))


def forget(server: Server, member: Membership, stream: str) -> bool:
    """Delete the keys beside a missing stream. Return False, and delete nothing, if it exists by now or an entry of it
    waits. Raises ServerError."""
    node = server.connection_for(stream)
    retries, returned = _retry_streams(member, stream), returned_stream(stream, member.group)
    node.execute("WATCH", stream, *retries, returned)
    if not _has_nothing(_state(node, member, stream)):
        node.execute("UNWATCH")
        return False
    keys: list[bytes | str] = [*retries, *map(origins_key, retries), returned, delays_key(stream, member.group)]
    for name in (stream, returned):
        keys += [key for kind, key in keys_of_consumer(name, member.group, member.consumer) if kind in _KINDS]
    return transact(node, [("DEL", *keys)]) is not None


def _retry_streams(member: Membership, stream: str) -> list[str]:
    return [retry_stream(stream, member.group, attempts) for attempts in range(1, MOST_DELAYS + 1)]


def _state(node: Connection, member: Membership, stream: str) -> Sequence[Reply]:
    """Return whether the stream exists, what is pending of returned entries, and the lengths of the other streams."""
    returned = returned_stream(stream, member.group)
    lengths = [("XLEN", name) for name in (returned, *_retry_streams(member, stream))]
    return node.execute_all([("EXISTS", stream), ("XPENDING", returned, member.group), *lengths], is_no_group)


def _has_nothing(state: Sequence[Reply]) -> bool:
    exists, pending, *lengths = state
    return not any([exists, 0 if is_no_group(pending) else pending[0], *lengths])
