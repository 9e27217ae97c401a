"""Whether streams can take entries: asked before a transaction, because within EXEC an XADD that fails does not hold up
the other commands (FACTS R14).

XINFO STREAM alone tells the last id that a stream has given out; that of its last entry may be lower (XDEL, XSETID).
It brings the first and the last entry along: once a transaction, two entries more.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_streams.errors import IdsExhaustedError, WrongKeyTypeError
from spark_streams.ids import MAX_ID, StreamId
from spark_streams.wire.connection import Argument, Connection, Reply, ReplyError
from spark_streams.wire.reply_errors import is_no_such_key
from spark_streams.wire.xinfo import stream_in


def watch_with_room(
    server: Connection, keys: Sequence[str | bytes], stream: str, entries: int, *asked: Sequence[Argument]
) -> list[Reply]:
    """Watch keys, and check that a stream can take so many XADDs with `*`. Return the replies to what else is asked.

    Raises IdsExhaustedError, WrongKeyTypeError, ServerReplyError; then nothing is watched.
    """
    watched, told, *replies = server.pipeline([("WATCH", *keys), ("XINFO", "STREAM", stream), *asked])
    try:
        for command, reply in zip([("XADD", stream), *asked], [watched, *replies], strict=True):
            if isinstance(reply, ReplyError):
                raise server.error_of(reply, command)
        _require_ids(server, stream, told, entries)
    except Exception:
        server.execute("UNWATCH")
        raise
    return replies


def questions(streams: Sequence[str | bytes]) -> list[tuple[Argument, ...]]:
    """Return the commands whose replies `require_streams` reads. To be asked under WATCH of the streams."""
    return [command for stream in streams for command in (("TYPE", stream), ("XINFO", "STREAM", stream))]


def require_streams(
    server: Connection, letters: str, streams: Sequence[str | bytes], replies: Sequence[Reply], entries: int
) -> None:
    """Check that each key is a stream that can take so many entries, or does not exist. letters: the stream of the
    dead letters. Raises WrongKeyTypeError, IdsExhaustedError, ServerReplyError."""
    for stream, kind, told in zip(streams, replies[0::2], replies[1::2], strict=True):
        if isinstance(kind, ReplyError):
            raise server.error_of(kind, ("XADD", stream))
        if kind not in (b"stream", b"none"):
            raise WrongKeyTypeError(
                f"dead letters of stream {letters!r} cannot go to key {_shown(stream)!r} at {server.address}: it holds "
                f"a {kind.decode()}; name a stream (--to)"
            )
        _require_ids(server, stream, told, entries)


def _require_ids(server: Connection, stream: str | bytes, reply: Reply, entries: int) -> None:
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


def _shown(stream: str | bytes) -> str:
    return stream if isinstance(stream, str) else stream.decode("utf-8", "replace")


def _ordinal(entry: StreamId) -> int:
    return entry.ms << 64 | entry.seq
