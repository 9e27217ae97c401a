"""Whether streams can take more entries: asked before a transaction, because within EXEC an XADD that fails does not
hold up the other commands (FACTS R14).

XINFO STREAM alone tells the last id that a stream has given out; that of its last entry may be lower (XDEL, XSETID).
It brings the first and the last entry along: once a transaction, two entries more.
"""

from __future__ import annotations

from spark_streams.errors import IdsExhaustedError
from spark_streams.ids import MAX_ID, StreamId
from spark_streams.wire.connection import Argument, Reply, ReplyError
from spark_streams.wire.reply_errors import is_no_such_key
from spark_streams.wire.server import Server
from spark_streams.wire.xinfo import stream_in


def question(stream: str | bytes) -> tuple[Argument, ...]:
    """The command whose reply `require_room` reads. To be asked under WATCH of the stream."""
    return ("XINFO", "STREAM", stream)


def require_room(server: Server, stream: str | bytes, reply: Reply, entries: int) -> None:
    """Make sure that so many XADDs with `*` can succeed, by the reply to `question`. What is not there has room.

    Raises IdsExhaustedError, WrongKeyTypeError, ServerReplyError.
    """
    if is_no_such_key(reply):
        return
    if isinstance(reply, ReplyError):
        raise server.error_of(reply, ("XADD", stream))
    last = stream_in(reply).last
    if _ordinal(MAX_ID) - _ordinal(last) < entries:
        name = stream if isinstance(stream, str) else stream.decode("utf-8", "replace")
        raise IdsExhaustedError(
            f"stream {name!r} at {server.address} cannot take {entries} more: the last id that it has given out is "
            f"{last}; stop who reads and writes it, and rename it (RENAME): its entries and groups stay under the "
            "new name"
        )


def _ordinal(entry: StreamId) -> int:
    return entry.ms << 64 | entry.seq
