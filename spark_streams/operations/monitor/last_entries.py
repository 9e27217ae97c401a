"""The last entries of streams, new entries, and those that a group reads next. Nothing on the server changes.

New entries come each once in the order of their IDs. The order holds for the entries of one read. An entry that is
added to another stream later, with a lower ID, comes later.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from spark_streams.base.ids import MAX_ID, StreamId
from spark_streams.base.printable import name_text
from spark_streams.connector.errors import StreamStateError
from spark_streams.connector.operator_commands import command_on
from spark_streams.connector.wire.connection import Argument, PageSizer, Reply, ReplyError, Server
from spark_streams.connector.wire.replies import is_no_such_key, portions_of
from spark_streams.connector.wire.xinfo import group_named, stream_states

# Entries per round trip over all streams: at first, at most; bytes per round trip.
_FIRST, _LARGEST, _BYTES = 10, 1_000, 4 << 20

Name = str | bytes


class Seen(NamedTuple):
    """An entry of a stream. pairs: field names and values."""

    id: StreamId
    stream: Name
    pairs: tuple[tuple[bytes, bytes], ...]


def last_entries(server: Server, streams: Sequence[Name], count: int) -> tuple[list[Seen], dict[Name, StreamId]]:
    """Return the last `count` entries of all streams together, and the last ID of each stream, for `Follower`. Raises
    WrongKeyTypeError, ServerError."""
    ends = {stream: head.last for stream, head in stream_states(server, [*streams]).items()}
    commands = [("XREVRANGE", stream, bytes(end), "-", "COUNT", count) for stream, end in ends.items()] if count else []
    newest: list[Seen] = []
    for command, reply in zip(commands, server.execute_each(commands), strict=True):
        if isinstance(reply, ReplyError):
            raise server.error_of(reply, command[:2])
        newest = heapq.nlargest(count, [*newest, *entries_of(command[1], reply)], key=lambda entry: entry.id)
    return sorted(newest, key=_order), ends


class Follower:
    """Reads entries after the positions of streams. `positions` advances with each yielded entry, so that a caller
    continues at the right entry after a lost connection. at_once: entries of the first round trip; later round trips
    adapt to the size of entries."""

    def __init__(self, positions: Mapping[Name, StreamId], at_once: int = _FIRST) -> None:
        self.positions = dict(positions)
        self._sizer = PageSizer(at_once, _LARGEST, _BYTES, growth=5)

    def add(self, positions: Mapping[Name, StreamId]) -> None:
        """Follow these streams, too, if they are new."""
        self.positions = {**positions, **self.positions}

    def step(self, server: Server, wait_ms: int) -> Iterator[Seen]:
        """Yield new entries in the order of their IDs. If there are none and all streams are in one slot, wait for
        `wait_ms`. Raises WrongKeyTypeError, ServerError; entries that were yielded are not yielded again."""
        batch: list[Seen] = []
        page_entries = max(1, self._sizer.size // max(1, len(self.positions)))
        bound = MAX_ID
        groups = portions_of(server, [*self.positions])
        block: list[Argument] = ["BLOCK", wait_ms] if len(groups) == 1 and wait_ms else []
        commands = [
            (
                "XREAD",
                "COUNT",
                page_entries,
                *block,
                "STREAMS",
                *slot_streams,
                *[bytes(self.positions[stream]) for stream in slot_streams],
            )
            for slot_streams in groups
        ]
        for reply in server.execute_all(commands):
            for name, entries in reply or ():
                given: Name = name if name in self.positions else name.decode()  # in the type that the caller used
                stream_entries = list(entries_of(given, entries))
                batch += stream_entries
                if len(stream_entries) >= page_entries:  # its next entries may precede later ones of other streams
                    bound = min(bound, stream_entries[-1].id)
        if batch:
            size = sum(len(name) + len(value) + 16 for entry in batch for name, value in entry.pairs)
            self._sizer.learn(len(batch), size)
        for entry in sorted(batch, key=_order):
            if entry.id <= bound:
                self.positions[entry.stream] = entry.id
                yield entry


def existing(server: Server, streams: Sequence[Name]) -> list[Name]:
    """Return those of the streams that exist."""
    replies = server.pipeline([("XINFO", "STREAM", stream) for stream in streams])
    return [stream for stream, reply in zip(streams, replies, strict=True) if not is_no_such_key(reply)]


def entries_of(stream: Name, reply: Reply) -> Iterator[Seen]:
    """Yield the entries of a reply of XRANGE, XREVRANGE or XREAD, without deleted ones."""
    for entry, fields in reply:
        if fields is not None:
            yield Seen(StreamId.parse(entry), stream, tuple(zip(fields[0::2], fields[1::2], strict=True)))


def _order(entry: Seen) -> tuple[StreamId, bytes]:
    return entry.id, entry.stream if isinstance(entry.stream, bytes) else entry.stream.encode()


class PreviewedEntry(NamedTuple):
    """A pending entry."""

    id: StreamId
    stream: Name
    consumer: str | None  # that holds it; None: it was released
    idle_ms: int | None  # since its last delivery; None: it was released
    deliveries: int
    entry: Seen | None  # None: it was deleted from the stream


def positions_of(server: Server, streams: Sequence[Name], group: str) -> dict[Name, StreamId]:
    """Return the group's position on each stream. Raises StreamStateError if a stream does not have the group."""
    positions: dict[Name, StreamId] = {}
    commands = [("XINFO", "GROUPS", stream) for stream in streams]
    for command, reply in zip(commands, server.execute_all(commands), strict=True):
        info = group_named(group, reply)
        if info is None:
            raise StreamStateError(
                f"no group {group!r} of stream {name_text(command[2])!r} at {server.address}; "
                f"{command_on(name_text(command[2]), 'groups list')} lists its groups"
            )
        positions[command[2]] = info.last_delivered
    return positions


def pending_entries(server: Server, stream: Name, group: str, limit: int) -> Iterator[PreviewedEntry]:
    """Yield the oldest pending entries, `limit` at most. Raises ServerReplyError and other errors of replies."""
    pending = server.execute("XPENDING", stream, group, "-", "+", limit)
    replies = server.execute_each([("XRANGE", stream, entry, entry) for entry, *_ in pending])
    for (entry, consumer, idle, deliveries), reply in zip(pending, replies, strict=True):
        entry_id = StreamId.parse(entry)
        seen = next(entries_of(stream, reply), None)
        is_held = idle >= 0
        yield PreviewedEntry(
            entry_id, stream, name_text(consumer) if is_held else None, idle if is_held else None, deliveries, seen
        )


def entries_to_come(server: Server, stream: Name, position: StreamId, limit: int) -> list[Seen]:
    """Return the first undelivered entries, `limit` at most."""
    reply = server.execute("XRANGE", stream, bytes(position.next()), "+", "COUNT", limit)
    return list(entries_of(stream, reply))
