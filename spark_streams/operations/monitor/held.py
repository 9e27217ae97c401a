"""Groups that hold entries back: another group of their stream needs less. They keep the stream long, and so memory.

All who show or forget such groups take them from here: `rstream groups prune --hold`, `rstream doctor`, `rstream lag`,
the exporter and the console. Nothing on the server changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from spark_streams.base.ids import StreamId
from spark_streams.base.printable import name_text
from spark_streams.base.units import count, duration, size
from spark_streams.connector.admin.groups import ReadingGroup, holding
from spark_streams.connector.errors import RStreamError
from spark_streams.connector.lag.survey import ACTIVE_MS, GroupLag, StreamSummary, Survey
from spark_streams.connector.wire.connection import ReplyError, Server
from spark_streams.connector.wire.xinfo import GroupInfo


def stream_sizes(
    server: Server, keys: Sequence[str | bytes], refused: Callable[[RStreamError], object]
) -> dict[str, int]:
    """Return the bytes of each stream that exists. refused: receives the error if the user may not ask, and the streams
    after that have no size."""
    sizes: dict[str, int] = {}
    for part in (keys[:1], keys[1:]):  # the first one shows whether the user may ask
        commands = [("MEMORY", "USAGE", key) for key in part]
        for command, reply in zip(commands, server.pipeline(commands), strict=True):
            if isinstance(reply, ReplyError):
                refused(server.error_of(reply, command))
                return sizes
            if reply is not None:  # None: deleted since
                sizes[name_text(command[2])] = reply
    return sizes


IDLE_MS = ACTIVE_MS  # people are shown groups that are idle for this time
MEASURED = 10  # streams whose memory is asked for: those in which idle groups hold most

_NO_SIZES: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True)
class Held:
    """A group that holds entries back."""

    stream: str
    group: str
    entries: int | None  # about; None if not known
    bytes: int | None  # about; None if not known
    idle_ms: int | None  # since the last command of its consumers; None if it has none
    position: str  # last-delivered ID
    removed: int = 0  # entries that forgetting it has removed

    @property
    def bound(self) -> tuple[str, str, str]:
        """What forgetting it is bounded to."""
        return self.stream, self.group, self.position

    def __str__(self) -> str:
        entries = f"holds {count(self.entries)} {'entry' if self.entries == 1 else 'entries'}"
        idle = "no consumer" if self.idle_ms is None else f"idle {duration(self.idle_ms)}"
        return f"{entries}, {idle}" if self.bytes is None else f"{entries}, about {size(self.bytes)}, {idle}"


def held_in(
    streams: Sequence[StreamSummary], groups: Sequence[GroupLag], sizes: Mapping[str, int] = _NO_SIZES
) -> list[Held]:
    """Return the groups that hold entries back, in their order. streams, groups: of a survey; sizes: bytes of streams,
    as far as they are known. Pure."""
    readers = {(group.stream, group.group): _reader(group) for group in groups}
    ahead: dict[str, ReadingGroup] = {}  # of each stream: the group that needs least
    for (stream, _), reader in readers.items():
        if stream not in ahead or reader.needed > ahead[stream].needed:
            ahead[stream] = reader
    holders, by_name = set(holding(readers)), {stream.stream: stream for stream in streams}
    return [
        _held(group, readers[key], ahead[group.stream], by_name[group.stream], sizes.get(group.stream))
        for group in groups
        if (key := (group.stream, group.group)) in holders
    ]


def fetch_held(server: Server, seen: Survey, idle_ms: int | None = None, measured: int | None = MEASURED) -> list[Held]:
    """Return the groups of a survey that hold entries back and whose consumers are all idle for this time (default:
    IDLE_MS). measured: number of streams whose memory is asked for, None: all. Groups of other streams, or of streams
    whose memory the user may not see, have no bytes."""
    idle_ms = IDLE_MS if idle_ms is None else idle_ms
    holders = idle_for(held_in(seen.streams, seen.groups), idle_ms)
    streams = list(dict.fromkeys(held.stream for held in sorted_by_entries(holders)))
    # A name that is not UTF-8 has another text, so it cannot be asked for.
    names = [stream for stream in streams[:measured] if name_text(stream) == stream]
    sizes = stream_sizes(server, names, refused=lambda _: None)
    lengths = {stream.stream: stream.length for stream in seen.streams}
    return [replace(held, bytes=_bytes(held.entries, sizes.get(held.stream), lengths[held.stream])) for held in holders]


def idle_for(holders: Sequence[Held], idle_ms: int) -> list[Held]:
    """Return those that have consumers, all of which are idle for this time."""
    return [held for held in holders if held.idle_ms is not None and held.idle_ms >= idle_ms]


def unused(holders: Sequence[Held]) -> list[Held]:
    """Return those that people are shown: idle for IDLE_MS, and they hold entries. The one that holds most first."""
    return sorted_by_entries([held for held in idle_for(holders, IDLE_MS) if held.entries != 0])


def sorted_by_entries(holders: Sequence[Held]) -> list[Held]:
    """Return them with the one that holds most first, otherwise in their order."""
    return sorted(holders, key=lambda held: -(held.entries or 0))


def _reader(group: GroupLag) -> ReadingGroup:
    info = GroupInfo(
        name=group.group.encode(),
        consumers=len(group.consumers),
        pending=group.pending,
        last_delivered=StreamId.parse(group.last_delivered),
        entries_read=group.delivered,
        lag=None if group.at_least else group.lag,
    )
    return ReadingGroup(info, None if group.oldest_pending is None else StreamId.parse(group.oldest_pending))


def _held(
    group: GroupLag, own: ReadingGroup, ahead: ReadingGroup, stream: StreamSummary, stream_bytes: int | None
) -> Held:
    entries = _entries(own, ahead, stream)
    idle = min((consumer.idle_ms for consumer in group.consumers), default=None)
    bytes_held = _bytes(entries, stream_bytes, stream.length)
    return Held(group.stream, group.group, entries, bytes_held, idle, group.last_delivered)


def _bytes(entries: int | None, stream_bytes: int | None, length: int) -> int | None:
    """Return the part of a stream's bytes that these entries take, if all take the same."""
    return (
        round(entries * stream_bytes / length) if entries is not None and stream_bytes is not None and length else None
    )


def _entries(own: ReadingGroup, ahead: ReadingGroup, stream: StreamSummary) -> int | None:
    """Return about how many entries are below what the other group needs, and not below what this one needs."""
    if not stream.length:
        return 0
    less = _behind(ahead)
    if stream.first and own.needed <= StreamId.parse(stream.first):  # also entries between its pending ones
        return None if less is None else max(stream.length - less, 0)
    more = _behind(own)
    return None if more is None or less is None else max(more - less, 0)


def _behind(reader: ReadingGroup) -> int | None:
    """Return the number of entries that the group has not acknowledged; None if its lag is not known."""
    return None if reader.info.lag is None else reader.info.lag + reader.info.pending
