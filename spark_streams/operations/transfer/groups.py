"""Groups of a copied stream: created on the target, and moved forward by a later copy while nobody uses them.

    first copy    SET rstream:copied:… 12-1, XGROUP CREATE … 12-1      the source's position
    later copy    SET rstream:copied:… 12-1 18-1, XGROUP SETID … 18-1, SET … 18-1

A group is unused if it has no consumer and no pending entry, and is at a position that a copy has recorded: no program
has read with it, and no operator has set it. A copy that is killed between two commands leaves both positions in the
record. Pure, except for `fetch_groups`, `plan` and `apply`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from spark_streams.base.ids import StreamId
from spark_streams.connector.admin.groups import count_read
from spark_streams.connector.keys import copied_key
from spark_streams.connector.operator_commands import seek_command
from spark_streams.connector.wire.connection.connection import Argument
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.replies import is_busy_group, is_no_such_key, is_not_permitted
from spark_streams.connector.wire.replies.xinfo import GroupInfo, groups_in, stream_states

_SECONDS = 30 * 86_400  # that a record lives
NEW, MOVED, SAME, LEFT = "new", "moved", "unchanged", "left"


@dataclass(frozen=True)
class CopiedGroup:
    """A group of the source. position: its last-delivered ID; pending: entries that stay with the source; exists: the
    target had a group of this name; target_position: of the target's group after the copy; state: NEW, MOVED, SAME (it
    is at the position) or LEFT; reason: why it is left."""

    group: str
    position: str
    pending: int
    exists: bool
    target_position: str
    state: str = NEW
    reason: str = ""

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


def plan(server: Server, stream: str, groups: Sequence[GroupInfo]) -> list[CopiedGroup]:
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


def apply(server: Server, stream: str, groups: Sequence[GroupInfo]) -> list[CopiedGroup]:
    """Create the groups at their positions, with the number of entries that the target has up to there, and move those
    that are unused. It may be repeated. Raises ServerError."""
    planned = plan(server, stream, groups)
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
