"""A stream as one of its groups would see it: what is pending, what it has yet to be given. Nothing is delivered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from spark_streams.errors import StreamStateError
from spark_streams.model.ids import StreamId
from spark_streams.monitor.groups import shown
from spark_streams.monitor.last_entries import Name, Seen
from spark_streams.wire.connection.connection import ReplyError
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.xinfo import group_named


class Pending(NamedTuple):
    """A pending entry: for whom, milliseconds since it was given to them (both None: it was released, for nobody), how
    often it was given to somebody; entry: None where it is in the stream no more."""

    id: StreamId
    stream: Name
    consumer: str | None
    idle_ms: int | None
    deliveries: int
    entry: Seen | None


def positions_of(server: Server, streams: Sequence[Name], group: str) -> dict[Name, StreamId]:
    """Where the group stands on these streams. Raises StreamStateError where one does not have it."""
    found: dict[Name, StreamId] = {}
    commands = [("XINFO", "GROUPS", stream) for stream in streams]
    for command, reply in zip(commands, server.execute_all(commands), strict=True):
        info = group_named(group, reply)
        if info is None:
            raise StreamStateError(
                f"no group {group!r} of stream {shown(command[2])!r} at {server.address}; rstream groups "
                f"{shown(command[2])} lists its groups"
            )
        found[command[2]] = info.last_delivered
    return found


def pending_entries(server: Server, stream: Name, group: str, most: int) -> Iterator[Pending]:
    """The oldest so many pending entries. Raises ServerReplyError and kin."""
    found = server.execute("XPENDING", stream, group, "-", "+", most)
    replies = server.execute_each([("XRANGE", stream, entry, entry) for entry, *_ in found])
    for (entry, consumer, idle, deliveries), reply in zip(found, replies, strict=True):
        if isinstance(reply, ReplyError):
            raise server.error_of(reply, ("XRANGE", stream))
        at = StreamId.parse(entry)
        fields = reply[0][1] if reply else None
        seen = None if fields is None else Seen(at, stream, tuple(zip(fields[0::2], fields[1::2], strict=True)))
        is_held = idle >= 0
        yield Pending(at, stream, shown(consumer) if is_held else None, idle if is_held else None, deliveries, seen)


def entries_to_come(server: Server, stream: Name, position: StreamId, most: int) -> list[Seen]:
    """The first so many that the group has yet to be given."""
    reply = server.execute("XRANGE", stream, bytes(position.next()), "+", "COUNT", most)
    return [Seen(StreamId.parse(one), stream, tuple(zip(f[0::2], f[1::2], strict=True))) for one, f in reply]
