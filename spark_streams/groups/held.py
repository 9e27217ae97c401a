"""Groups that hold entries back which no other group needs: what they hold, and forgetting them by hand.

The rules are those of option forgetGroups (retention.forgotten).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from spark_streams.errors import GroupInUseError
from spark_streams.model.pattern import NamesAndPatterns
from spark_streams.model.printable import name_text
from spark_streams.retention.forgotten import GroupName, Reader, fetch_consumers, holding, is_idle, record
from spark_streams.retention.readers import fetch_readers
from spark_streams.wire.connection.connection import ReplyError
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.xinfo import ConsumerInfo


@dataclass(frozen=True)
class Held:
    """A group that holds entries back. entries, bytes: about how many, None if the server does not tell; idle_ms: since
    the last command of its consumers; position: last-delivered ID; removed: entries that forgetting it has removed."""

    stream: str
    group: str
    entries: int | None
    bytes: int | None
    idle_ms: int
    position: str
    removed: int = 0


def find_held(server: Server, streams: Sequence[str], groups: Sequence[str], exact: bool, idle_ms: int) -> list[Held]:
    """Return the groups that hold entries back and whose consumers are all idle for this time. groups: names or
    patterns, empty for all; exact: all are names. Raises ServerError."""
    readers = fetch_readers(server, [stream.encode() for stream in streams])
    consumers = fetch_consumers(server, holding(readers))
    idle = [group for group, found in consumers.items() if is_idle(found, idle_ms) and _is_text(group[1])]
    names = {name_text(name) for _, name in idle}
    wanted = NamesAndPatterns.divide(groups, {*groups} if exact else names)
    idle = [group for group in idle if not groups or wanted.selects(name_text(group[1]))]
    sizes = _entry_sizes(server, {stream for stream, _ in idle})
    return [_held(group, readers, consumers[group], sizes.get(group[0])) for group in idle]


def _is_text(name: bytes) -> bool:
    """Whether the name is UTF-8. Other groups cannot be named on a command line."""
    return name_text(name).encode() == name


def _held(
    group: GroupName, readers: Mapping[GroupName, Reader], consumers: Sequence[ConsumerInfo], size: float | None
) -> Held:
    counts = {name: _behind(reader) for name, reader in readers.items() if name[0] == group[0]}
    own, others = counts.pop(group), [count for count in counts.values() if count is not None]
    entries = max(own - min(others), 0) if own is not None and others else None
    bytes_held = None if entries is None or size is None else round(entries * size)
    idle = min(consumer.idle for consumer in consumers)
    return Held(
        name_text(group[0]), name_text(group[1]), entries, bytes_held, idle, str(readers[group].info.last_delivered)
    )


def _behind(reader: Reader) -> int | None:
    """Return the number of entries that the group has not acknowledged; None if the server does not know its lag."""
    return None if reader.info.lag is None else reader.info.lag + reader.info.pending


def _entry_sizes(server: Server, streams: set[bytes]) -> dict[bytes, float]:
    """Return the mean bytes of an entry in memory, of streams whose memory the user may see."""
    names = sorted(streams)
    replies = server.pipeline([command for name in names for command in (("MEMORY", "USAGE", name), ("XLEN", name))])
    return {
        name: usage / length
        for name, usage, length in zip(names, replies[0::2], replies[1::2], strict=True)
        if not isinstance(usage, ReplyError) and not isinstance(length, ReplyError) and usage and length
    }


def forget_group(server: Server, held: Held, idle_ms: int, forgotten: set[GroupName]) -> Held:
    """Record that a group is forgotten, and remove the entries that only forgotten groups hold back. Return it with
    their number. forgotten: those of this call's command, to which the group is added. Raises GroupInUseError."""
    group = (held.stream.encode(), held.group.encode())
    readers = fetch_readers(server, [group[0]])
    consumers = fetch_consumers(server, [group] if group in readers else []).get(group, [])
    if not is_idle(consumers, idle_ms) or record(server, group, readers[group].info, consumers) is None:
        raise GroupInUseError(
            f"group {held.group!r} of stream {held.stream!r} is in use now, and is not forgotten. Repeat the command "
            "for the other groups"
        )
    forgotten.add(group)
    needed = [reader.needed for name, reader in readers.items() if name not in forgotten]
    removed = server.execute("XTRIM", held.stream, "MINID", "=", str(min(needed))) if needed else 0
    return replace(held, removed=removed)
