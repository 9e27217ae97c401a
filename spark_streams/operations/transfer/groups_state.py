"""Groups of a stream for `rstream export --with-groups`, all of one moment: one transaction reads them.

XINFO STREAM FULL has the exact times of the consumers, and XPENDING those of the pending entries from an ID on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spark_streams.base.export_lines import VERSION
from spark_streams.base.ids import StreamId
from spark_streams.base.printable import json_text
from spark_streams.connector.deadletter.envelope import text
from spark_streams.connector.deadletter.listing import text_as_json
from spark_streams.connector.errors import StreamStateError
from spark_streams.connector.wire.connection.connection import Reply
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.multi_exec import transact
from spark_streams.connector.wire.replies.replies import milliseconds, pairs
from spark_streams.operations.transfer.groups import fetch_groups

MOST_PENDING = 100_000  # entries of a group: a transaction returns them


@dataclass(frozen=True)
class GroupsState:
    """lines: of the file (base/export_lines.py); last: the stream's last ID; groups, pending: their number; left_out:
    pending entries below the first one."""

    lines: bytes
    last: StreamId
    groups: int
    pending: int
    left_out: int


def fetch_groups_state(server: Server, stream: str, first: StreamId, most: int = MOST_PENDING) -> GroupsState:
    """Return the groups with their pending entries from `first` on. Raises StreamStateError, ServerError."""
    names = [group.name for group in fetch_groups(server, stream)]
    pending = [("XPENDING", stream, name, bytes(first), "+", most + 1) for name in names]
    commands = [("TIME",), ("XINFO", "STREAM", stream, "FULL", "COUNT", 1), *pending]
    replies = transact(server.connection_for(stream), commands)
    assert replies is not None  # no key is watched
    clock, full, *listed = replies
    for name, entries in zip(names, listed, strict=True):
        if len(entries) > most:
            raise StreamStateError(
                f"group {text(name)!r} of stream {stream!r} at {server.address} has more than {most:,} pending entries "
                f"from {first} on; export fewer entries (--last, --from)"
            )
    info, time = pairs(full), milliseconds(clock)
    head = {
        **{"version": VERSION, "stream": text_as_json(stream), "time": time},
        **{"last": info[b"last-generated-id"].decode(), "added": info[b"entries-added"]},
        "deleted": info[b"max-deleted-entry-id"].decode(),
    }
    groups = {group[b"name"]: group for group in map(pairs, info[b"groups"])}
    lines: list[dict[str, object]] = [{"export": head}]
    for name, entries in zip(names, listed, strict=True):
        lines += _group_lines(groups[name], entries, time)
    packed = b"".join(json_text(line, separators=(",", ":")).encode() + b"\n" for line in lines)
    total, count = sum(groups[name][b"pel-count"] for name in names), sum(map(len, listed))
    return GroupsState(packed, StreamId.parse(info[b"last-generated-id"]), len(names), count, total - count)


def _group_lines(group: dict[bytes, Reply], entries: Sequence[Reply], time: int) -> Iterator[dict[str, object]]:
    of = {"group": text_as_json(text(group[b"name"]))}
    yield {**of, "position": group[b"last-delivered-id"].decode(), "read": group[b"entries-read"]}
    for member in map(pairs, group[b"consumers"]):
        seen: int = member[b"seen-time"]
        active: int = {b"active-time": seen, **member}[b"active-time"]  # Redis 7.0 has none
        idle, inactive = max(0, time - seen), None if active < 0 else max(0, time - active)
        yield {**of, "consumer": text_as_json(text(member[b"name"])), "idle": idle, "inactive": inactive}
    for entry_id, owner, waited, deliveries in entries:
        is_owned = waited >= 0  # a released entry has no consumer, and -1
        consumer, waiting = (text_as_json(text(owner)), waited) if is_owned else (None, None)
        yield {**of, "pending": entry_id.decode(), "consumer": consumer, "idle": waiting, "deliveries": deliveries}
