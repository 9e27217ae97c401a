"""Groups of a copied stream: each group of the source gets its position on the target.

    group on the target                        position on the target
    missing                                    new: that of the source
    unused, below the source's position        moved: that of the source
    used, or not below the source's position   unchanged

A group is unused if it has no consumer and no pending entry, as a copy has created it. So a copy can be run again after
the producers have stopped: consumers of the target then continue where those of the source have ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_streams.errors import CopyTargetError
from spark_streams.source.findings.count_entries import count_read
from spark_streams.wire.connection.connection import Argument, ReplyError
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.multi_exec import transact
from spark_streams.wire.replies.reply_errors import is_no_such_key
from spark_streams.wire.replies.xinfo import GroupInfo, groups_in, read_stream_state

NEW, MOVED, UNCHANGED = "new", "moved", "unchanged"
_ATTEMPTS = 100  # while other clients write to the target


@dataclass(frozen=True)
class CopiedGroup:
    """A group of the source. position: its last-delivered ID on the target, after the copy; source_position: on the
    source; pending: entries that stay with the source; state: NEW, MOVED or UNCHANGED; consumers: on the target."""

    group: str
    position: str
    source_position: str
    pending: int
    state: str
    consumers: int


def fetch_groups(server: Server, stream: str) -> list[GroupInfo]:
    """Return the groups of a stream, none if it does not exist. Raises ServerError."""
    command = ("XINFO", "GROUPS", stream)
    [reply] = server.pipeline([command])
    if is_no_such_key(reply):
        return []
    if isinstance(reply, ReplyError):
        raise server.error_of(reply, command)
    return groups_in(reply)


def plan_groups(groups: Sequence[GroupInfo], existing: Sequence[GroupInfo]) -> list[CopiedGroup]:
    """Return what a copy does with the groups of the source. existing: groups of the target. Pure."""
    by_name = {group.name: group for group in existing}
    return [_planned(group, by_name.get(group.name)) for group in groups]


def _planned(group: GroupInfo, existing: GroupInfo | None) -> CopiedGroup:
    if existing is None:
        state = NEW
    elif existing.consumers or existing.pending or existing.last_delivered >= group.last_delivered:
        state = UNCHANGED
    else:
        state = MOVED
    position = existing.last_delivered if existing is not None and state == UNCHANGED else group.last_delivered
    return CopiedGroup(
        group.name.decode("utf-8", "surrogateescape"),
        str(position),
        str(group.last_delivered),
        group.pending,
        state,
        0 if existing is None else existing.consumers,
    )


def set_groups(server: Server, stream: str, groups: Sequence[GroupInfo]) -> list[CopiedGroup]:
    """Create or move the groups of the target, with the number of entries that the target has up to there.

    Raises CopyTargetError, ServerError."""
    return [_set_group(server, stream, group) for group in groups]


def _set_group(server: Server, stream: str, group: GroupInfo) -> CopiedGroup:
    """Do so under WATCH: a consumer that joins meanwhile keeps its position."""
    for _ in range(_ATTEMPTS):
        node = server.connection_for(stream)
        node.execute("WATCH", stream)
        [planned] = plan_groups([group], [info for info in fetch_groups(node, stream) if info.name == group.name])
        if planned.state == UNCHANGED:
            node.execute("UNWATCH")
            return planned
        [reply] = node.pipeline([("XINFO", "STREAM", stream)])
        head = read_stream_state(node, stream, reply)
        read = count_read(node, stream, head, min(group.last_delivered, head.last)) if head.exists else None
        counted: tuple[Argument, ...] = () if read is None else ("ENTRIESREAD", read)
        position = bytes(group.last_delivered)
        if planned.state == NEW:
            command = ("XGROUP", "CREATE", stream, group.name, position, "MKSTREAM", *counted)
        else:
            command = ("XGROUP", "SETID", stream, group.name, position, *counted)
        if transact(node, [command]) is not None:
            return planned
    raise CopyTargetError(
        f"stream {stream!r} at {server.address} changes too often: group {group.name.decode('utf-8', 'replace')!r} "
        "could not be set. Stop the programs that write to it, and run the copy again"
    )
