"""Groups of a copied stream, and those that `rstream export --with-groups` writes.

A copy creates groups on the target, and a later copy moves them forward while nobody uses them:

    first copy    SET rstream:copied:… 12-1, XGROUP CREATE … 12-1      the source's position
    later copy    SET rstream:copied:… 12-1 18-1, XGROUP SETID … 18-1, SET … 18-1

A group is unused if it has no consumer and no pending entry, and is at a position that a copy has recorded: no program
has read with it, and no operator has set it. A copy that is killed between two commands leaves both positions in the
record.

An export has all groups of one moment: one transaction reads them. XINFO STREAM FULL has the exact times of the
consumers, and XPENDING those of the pending entries from an ID on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from spark_streams.base.export_lines import VERSION
from spark_streams.base.ids import StreamId
from spark_streams.base.printable import json_text
from spark_streams.connector.admin.dead_letters import text_as_json
from spark_streams.connector.admin.groups import count_read
from spark_streams.connector.deadletter.envelope import text
from spark_streams.connector.errors import StreamStateError
from spark_streams.connector.keys import copied_key
from spark_streams.connector.operator_commands import seek_command
from spark_streams.connector.wire.connection import Argument, Reply, Server
from spark_streams.connector.wire.replies import (
    is_busy_group,
    is_no_such_key,
    is_not_permitted,
    milliseconds,
    pairs,
    transact,
)
from spark_streams.connector.wire.xinfo import GroupInfo, groups_in, stream_states

_SECONDS = 30 * 86_400  # that a record lives
NEW, MOVED, SAME, LEFT = "new", "moved", "unchanged", "left"


@dataclass(frozen=True)
class CopiedGroup:
    """A group of the source."""

    group: str
    position: str  # its last-delivered ID
    pending: int  # entries that stay with the source
    exists: bool  # the target had a group of this name
    target_position: str  # of the target's group after the copy
    state: str = NEW  # NEW, MOVED, SAME (it is at the position) or LEFT
    reason: str = ""  # why it is left

    def note(self, stream: str) -> str | None:
        """Return what the user should know about a group that is left; None: nothing. stream: the target."""
        if self.state != LEFT:
            return None
        return (
            f"group {self.group!r} of the target stays at {self.target_position}, and is at {self.position} on the "
            f"source: {self.reason}. To move it: {seek_command(stream, self.group, self.position)}"
        )


def fetch_groups(server: Server, stream: str) -> list[GroupInfo]:
    """Return the groups of a stream; none if it does not exist. Raises ServerError."""
    [reply] = server.execute_all([("XINFO", "GROUPS", stream)], is_no_such_key)
    return [] if is_no_such_key(reply) else groups_in(reply)


def plan_groups(server: Server, stream: str, groups: Sequence[GroupInfo]) -> list[CopiedGroup]:
    """Return what a copy would do with the groups of the source. stream: the target. Raises ServerError."""
    existing = {group.name: group for group in fetch_groups(server, stream)}
    records = {group.name: _fetch_record(server, stream, group.name) for group in groups if group.name in existing}
    return [decide(group, existing.get(group.name), records.get(group.name, ())) for group in groups]


def decide(group: GroupInfo, existing: GroupInfo | None, record: Sequence[StreamId]) -> CopiedGroup:
    """Return what a copy does with a group. existing: on the target; record: positions that copies gave it. Pure."""
    name, position = group.name.decode("utf-8", "surrogateescape"), str(group.last_delivered)
    copied = CopiedGroup(name, position, group.pending, existing is not None, position)
    if existing is None:
        return copied
    if existing.last_delivered == group.last_delivered:
        return replace(copied, state=SAME)
    reasons = {
        "it has consumers": existing.consumers > 0,
        "it has pending entries": existing.pending > 0,
        "no copy has set it to this position": existing.last_delivered not in record,
        "a copy moves groups forward only": existing.last_delivered > group.last_delivered,
    }
    reason = next((reason for reason, holds in reasons.items() if holds), None)
    if reason is None:
        return replace(copied, state=MOVED)
    return replace(copied, target_position=str(existing.last_delivered), state=LEFT, reason=reason)


def copy_groups(server: Server, stream: str, groups: Sequence[GroupInfo]) -> list[CopiedGroup]:
    """Create the groups at their positions, with the number of entries that the target has up to there, and move those
    that are unused. It may be repeated. Raises ServerError."""
    planned = plan_groups(server, stream, groups)
    for group, copied in zip(groups, planned, strict=True):
        if copied.state == NEW:
            _record(server, stream, group.name, [group.last_delivered])
            _send(server, ("XGROUP", "CREATE", stream, group.name, bytes(group.last_delivered), "MKSTREAM"), group)
        elif copied.state == MOVED:
            record = _fetch_record(server, stream, group.name)
            _record(server, stream, group.name, [*record[-1:], group.last_delivered])
            _send(server, ("XGROUP", "SETID", stream, group.name, bytes(group.last_delivered)), group)
            _record(server, stream, group.name, [group.last_delivered])
    return planned


def _send(server: Server, command: tuple[Argument, ...], group: GroupInfo) -> None:
    """Send the command with the number of entries that the target has up to the group's position."""
    stream = str(command[2])
    head = stream_states(server, [stream])[stream]
    read = count_read(server, stream, head, min(group.last_delivered, head.last)) if head.exists else None
    counted: tuple[Argument, ...] = () if read is None else ("ENTRIESREAD", read)
    server.execute_all([(*command, *counted)], is_busy_group)


def _fetch_record(server: Server, stream: str, group: bytes) -> tuple[StreamId, ...]:
    """Return the positions that copies gave a group; none if they are unknown, or if the user may not read them."""
    [reply] = server.execute_all([("GET", copied_key(stream, group))], is_not_permitted)
    if reply is None or is_not_permitted(reply):
        return ()
    return tuple(StreamId.parse(word) for word in reply.split())


def _record(server: Server, stream: str, group: bytes, positions: Sequence[StreamId]) -> None:
    """Record positions that copies give a group. A user without the right leaves no record: a later copy then leaves
    the group where it is, and says so."""
    command = ("SET", copied_key(stream, group), b" ".join(map(bytes, positions)), "EX", _SECONDS)
    server.execute_all([command], is_not_permitted)


MOST_PENDING = 100_000  # entries of a group: a transaction returns them


@dataclass(frozen=True)
class GroupsState:
    """Groups for a file."""

    lines: bytes  # of the file (base/export_lines.py)
    last: StreamId  # the stream's last ID
    groups: int  # their number
    pending: int  # their number
    left_out: int  # pending entries below the first one


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
