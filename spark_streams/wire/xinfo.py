"""Streams as XINFO tells of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_streams.ids import MIN_ID, StreamId
from spark_streams.wire.connection import Connection, Reply, ReplyError
from spark_streams.wire.replies import pairs
from spark_streams.wire.reply_errors import is_no_such_key


@dataclass(frozen=True)
class StreamState:
    """last: the id of the last entry ever added (0-0: none); length: entries now; added: entries ever added, and
    first: the oldest entry's id, None before Redis 7; exists: whether there is such a key."""

    last: StreamId
    length: int
    added: int | None
    first: StreamId | None
    exists: bool = True


def stream_states(server: Connection, streams: Sequence[str]) -> dict[str, StreamState]:
    """What each stream holds, in one round trip; a stream that does not exist holds nothing."""
    replies = server.each([("XINFO", "STREAM", stream) for stream in streams])
    return {s: _read_stream_state(server, s, reply) for s, reply in zip(streams, replies, strict=True)}


def _read_stream_state(server: Connection, stream: str, reply: Reply) -> StreamState:
    if isinstance(reply, ReplyError):
        if is_no_such_key(reply):
            return StreamState(MIN_ID, 0, 0, None, exists=False)
        raise server.error_of(reply, ("XINFO", "STREAM", stream))
    info = pairs(reply)
    first = info.get(b"recorded-first-entry-id")
    return StreamState(
        last=StreamId.parse(info[b"last-generated-id"]),
        length=info[b"length"],
        added=info.get(b"entries-added"),
        first=None if first is None else StreamId.parse(first),
    )
