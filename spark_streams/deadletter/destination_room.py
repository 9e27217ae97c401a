"""Whether streams can take the entries of dead letters: asked before a transaction, because within EXEC an XADD that
fails does not hold up the other commands (FACTS R14)."""

from __future__ import annotations

from collections.abc import Sequence

from spark_streams.deadletter.ids_left import question, require_room
from spark_streams.errors import WrongKeyTypeError
from spark_streams.wire.connection import Argument, Connection, Reply, ReplyError


def questions(streams: Sequence[str | bytes]) -> list[tuple[Argument, ...]]:
    """Return the commands whose replies `require_streams` reads."""
    return [command for stream in streams for command in (("TYPE", stream), question(stream))]


def require_streams(
    server: Connection, letters: str, streams: Sequence[str | bytes], replies: Sequence[Reply], entries: int
) -> None:
    """Check that each key is a stream that can take so many entries, or does not exist. letters: the stream of the
    dead letters. Raises WrongKeyTypeError, IdsExhaustedError, ServerReplyError."""
    for stream, kind, told in zip(streams, replies[0::2], replies[1::2], strict=True):
        if isinstance(kind, ReplyError):
            raise server.error_of(kind, ("XADD", stream))
        if kind not in (b"stream", b"none"):
            name = stream if isinstance(stream, str) else stream.decode("utf-8", "replace")
            raise WrongKeyTypeError(
                f"dead letters of stream {letters!r} cannot go to key {name!r} at {server.address}: it holds a "
                f"{kind.decode()}; name a stream (--to)"
            )
        require_room(server, stream, told, entries)
