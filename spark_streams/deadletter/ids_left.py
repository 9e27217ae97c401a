"""Whether streams can take entries: asked before a transaction, because within EXEC an XADD that fails does not hold up
the other commands (FACTS R14).

XINFO STREAM alone tells the last id that a stream has given out; that of its last entry may be lower (XDEL, XSETID).
It brings the first and the last entry along: once a transaction, two entries more.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_streams.errors import IdsExhaustedError, WrongKeyTypeError
from spark_streams.model.ids import MAX_ID, StreamId
from spark_streams.wire.connection.connection import Argument, Connection, Reply, ReplyError
from spark_streams.wire.connection.server import Key
from spark_streams.wire.replies.reply_errors import is_no_such_key
from spark_streams.wire.replies.xinfo import stream_in


def watch_with_room(
    server: Connection, keys: Sequence[Key], streams: Sequence[Key], entries: int, *asked: Sequence[Argument]
) -> list[Reply]:
    """Watch keys, and check that each of the streams can take so many XADDs with `*`. Return the replies to what else
    is asked.

    Raises IdsExhaustedError, WrongKeyTypeError, ServerReplyError; then nothing is watched.
    """
    watch = [("WATCH", *keys)] if keys else []
    replies = server.pipeline([*watch, *asked, *[("XINFO", "STREAM", stream) for stream in streams]])
    count = len(watch) + len(asked)
    try:
        for command, reply in zip([*watch, *asked], replies, strict=False):
            if isinstance(reply, ReplyError):
                raise server.error_of(reply, command)
        for stream, reply in zip(streams, replies[count:], strict=True):
            _require_ids(server, stream, reply, entries)
    except Exception:
        server.execute("UNWATCH")
        raise
    return replies[len(watch) : count]


def watch_destinations(
    server: Connection, letters: str, keys: Sequence[Key], streams: Sequence[Key], entries: int
) -> None:
    """The same for streams that dead letters of the stream `letters` go to: the error says what a key holds."""
    try:
        watch_with_room(server, keys, streams, entries)
    except WrongKeyTypeError as error:
        for stream, kind in zip(streams, server.execute_all([("TYPE", stream) for stream in streams]), strict=True):
            if kind not in (b"stream", b"none"):
                raise WrongKeyTypeError(
                    f"dead letters of stream {letters!r} cannot go to key {_shown(stream)!r} at {server.address}: it "
                    f"holds a {kind.decode()}; name a stream (--to)"
                ) from error
        raise


def _require_ids(server: Connection, stream: Key, reply: Reply, entries: int) -> None:
    """Check the reply to XINFO STREAM. A stream that does not exist has room."""
    if is_no_such_key(reply):
        return
    if isinstance(reply, ReplyError):
        raise server.error_of(reply, ("XADD", stream))
    last = stream_in(reply).last
    if _ordinal(MAX_ID) - _ordinal(last) < entries:
        raise IdsExhaustedError(
            f"stream {_shown(stream)!r} at {server.address} cannot take {entries} more: the last id that it has given "
            f"out is {last}; stop who reads and writes it, and rename it (RENAME): its entries and groups stay under "
            "the new name"
        )


def _shown(stream: Key) -> str:
    return stream if isinstance(stream, str) else stream.decode("utf-8", "replace")


def _ordinal(entry: StreamId) -> int:
    return entry.ms << 64 | entry.seq
