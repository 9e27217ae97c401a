"""Check before a transaction that streams can take entries: an XADD that fails within EXEC does not stop the other
commands (FACTS R14).

Only XINFO STREAM returns the last ID that a stream has generated; the ID of its last entry may be lower (XDEL, XSETID).
The reply also contains the first and the last entry: two entries per transaction.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_streams.base.ids import MAX_ID, StreamId
from spark_streams.connector.errors import IdsExhaustedError, WrongKeyTypeError
from spark_streams.connector.wire.connection import Argument, Connection, Key, Reply
from spark_streams.connector.wire.replies import is_no_such_key
from spark_streams.connector.wire.xinfo import stream_in


def watch_and_check_ids(
    server: Connection, keys: Sequence[Key], streams: Sequence[Key], entries: int, *reads: Sequence[Argument]
) -> list[Reply]:
    """Watch keys, and check that each of the streams can take this many XADDs with `*`. Return the replies to `reads`.

    Raises IdsExhaustedError, WrongKeyTypeError, ServerReplyError; then nothing is watched.
    """
    watch = [("WATCH", *keys)] if keys else []
    count = len(watch) + len(reads)
    try:
        described = [("XINFO", "STREAM", stream) for stream in streams]
        replies = server.execute_all([*watch, *reads, *described], is_no_such_key)
        for stream, reply in zip(streams, replies[count:], strict=True):
            _require_ids(server, stream, reply, entries)
    except Exception:
        if server.is_open:
            server.execute("UNWATCH")
        raise
    return replies[len(watch) : count]


def watch_destinations(
    server: Connection, source: str, keys: Sequence[Key], streams: Sequence[Key], entries: int
) -> None:
    """Do the same for destinations of dead letters of the stream `source`: the error names the type of a wrong key."""
    try:
        watch_and_check_ids(server, keys, streams, entries)
    except WrongKeyTypeError as error:
        for stream, kind in zip(streams, server.execute_all([("TYPE", stream) for stream in streams]), strict=True):
            if kind not in (b"stream", b"none"):
                raise WrongKeyTypeError(
                    f"dead letters of stream {source!r} cannot be moved to key {_shown(stream)!r} at {server.address}: "
                    f"it holds a {kind.decode()}. Name a stream (--to)"
                ) from error
        raise


def _require_ids(server: Connection, stream: Key, reply: Reply, entries: int) -> None:
    """Check the reply to XINFO STREAM. A stream that does not exist can take entries."""
    if is_no_such_key(reply):
        return
    last = stream_in(reply).last
    if _ordinal(MAX_ID) - _ordinal(last) < entries:
        raise IdsExhaustedError(
            f"stream {_shown(stream)!r} at {server.address} cannot take {entries} more entries: its last ID is {last}. "
            "Stop its readers and writers, and rename it (RENAME): its entries and groups are kept under the new name"
        )


def _shown(stream: Key) -> str:
    return stream if isinstance(stream, str) else stream.decode("utf-8", "replace")


def _ordinal(entry: StreamId) -> int:
    return entry.ms << 64 | entry.seq
