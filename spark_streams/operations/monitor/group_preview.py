"""Preview of what a group reads from a stream: its pending and its undelivered entries. Nothing is delivered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from spark_streams.base.ids import StreamId
from spark_streams.base.printable import name_text
from spark_streams.connector.errors import StreamStateError
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.xinfo import group_named
from spark_streams.operations.monitor.last_entries import Name, Seen, entries_of


class Pending(NamedTuple):
    """A pending entry. consumer: that holds it; idle_ms: since its last delivery (both None: it was released);
    deliveries: their number; entry: None if it was deleted from the stream."""

    id: StreamId
    stream: Name
    consumer: str | None
    idle_ms: int | None
    deliveries: int
    entry: Seen | None


def positions_of(server: Server, streams: Sequence[Name], group: str) -> dict[Name, StreamId]:
    """Return the group's position on each stream. Raises StreamStateError if a stream does not have the group."""
    positions: dict[Name, StreamId] = {}
    commands = [("XINFO", "GROUPS", stream) for stream in streams]
    for command, reply in zip(commands, server.execute_all(commands), strict=True):
        info = group_named(group, reply)
        if info is None:
            raise StreamStateError(
                f"no group {group!r} of stream {name_text(command[2])!r} at {server.address}; rstream groups "
                f"{name_text(command[2])} lists its groups"
            )
        positions[command[2]] = info.last_delivered
    return positions


def pending_entries(server: Server, stream: Name, group: str, limit: int) -> Iterator[Pending]:
    """Yield the oldest pending entries, `limit` at most. Raises ServerReplyError and other errors of replies."""
    pending = server.execute("XPENDING", stream, group, "-", "+", limit)
    replies = server.execute_each([("XRANGE", stream, entry, entry) for entry, *_ in pending])
    for (entry, consumer, idle, deliveries), reply in zip(pending, replies, strict=True):
        entry_id = StreamId.parse(entry)
        seen = next(entries_of(stream, reply), None)
        is_held = idle >= 0
        yield Pending(
            entry_id, stream, name_text(consumer) if is_held else None, idle if is_held else None, deliveries, seen
        )


def entries_to_come(server: Server, stream: Name, position: StreamId, limit: int) -> list[Seen]:
    """Return the first undelivered entries, `limit` at most."""
    reply = server.execute("XRANGE", stream, bytes(position.next()), "+", "COUNT", limit)
    return list(entries_of(stream, reply))
