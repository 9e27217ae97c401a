"""The group is a bookmark (noAck): it shows the position that the query has committed, and delivers no entry.

Its position is for other clients: `lag`, `trim=acked` and `onCommit` of other groups use it. Each commit sets it,
with the commit mark. After a crash a group may be at the batch before, and another client may have moved it. The
checkpoint decides, and the next commit sets the group. No batch reads what is pending.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_streams.errors import GroupSharedError, StreamStateError
from spark_streams.model.ids import MAX_ID, StreamId
from spark_streams.model.operator_commands import acknowledge_command, delete_consumer_command
from spark_streams.source.group.admin import GroupChange, change_groups
from spark_streams.source.group.compare import is_older
from spark_streams.source.group.findings import Start
from spark_streams.source.group.state import GroupState, Look, fetch_looks
from spark_streams.source.membership import Membership
from spark_streams.source.offset import Offset, StreamOffset
from spark_streams.source.pending_list import acknowledge
from spark_streams.source.range import Range
from spark_streams.source.trigger.delivery import Delivery
from spark_streams.source.trigger.looks import Looks
from spark_streams.source.trigger.run_state import RunState
from spark_streams.wire.connection.server import Server


class Bookmarked(Delivery):
    """A query whose group is a bookmark."""

    def look(self, server: Server, start: Offset, streams: Sequence[str]) -> Looks:
        """Look at streams. Raises GroupSharedError if others use a group."""
        looks = fetch_looks(server, self.member, streams)
        for stream, look in looks.items():
            if look.group is not None:
                self._require_unused(stream, look.group)
        return Looks({stream: look_at_query(start.at.get(stream), look) for stream, look in looks.items()}, {}, {})

    def at_query(self, at: StreamOffset, group: GroupState) -> GroupState:
        """Return the group as if it had delivered up to the query's position."""
        return _delivered_up_to(at, group)

    def position(self, stream: str, start: Offset, run: RunState) -> StreamId:
        """Return the position of the last commit."""
        return start[stream] if run.settled is None else run.settled[stream]

    def second_backlog(self, server: Server, start: Offset, pending: Mapping[str, int]) -> Mapping[str, int]:
        """Acknowledge what a run without noAck has reserved above the position: this run reads it from the stream.
        Raises StreamStateError if other entries are pending."""
        reserved = [Range(stream, start[stream], MAX_ID) for stream in pending]
        acknowledge(server, self.member, reserved, self.limits)
        for stream in pending:
            self._refuse_pending(server, stream)
        return {}

    def _require_unused(self, stream: str, group: GroupState) -> None:
        """Raise GroupSharedError if the group has other consumers, or released entries."""
        name = self.member.group
        if group.others:
            other, pending = group.others[0]
            raise GroupSharedError(
                f"stream {stream!r}: noAck=true needs a group without other consumers, and {other!r} ({pending} "
                f"pending entries) is in group {name!r}. Set noAck=false, or delete the consumer: that is refused "
                f"while entries are pending for it ({delete_consumer_command(stream, name, other)})"
            )
        if group.released:
            raise GroupSharedError(
                f"stream {stream!r}: {group.released} entries of group {name!r} were released (XNACK) and are "
                "pending for no consumer. A query with noAck does not read pending entries. Run it once without "
                "noAck, and with options deadLetterStream and maxDeliveries=100: it reads them, and fatal ones "
                "(XNACK FATAL) become dead letters. Without deadLetterStream, fatal ones stay pending"
            )

    def _refuse_pending(self, server: Server, stream: str) -> None:
        """Raise StreamStateError if entries are pending: no batch would read them."""
        group, consumer = self.member.group, self.member.consumer
        count, first, last, _ = server.execute("XPENDING", stream, group)
        if not count:
            return
        raise StreamStateError(
            f"stream {stream!r}: {count} entries from {first.decode()} to {last.decode()} are pending for consumer "
            f"{consumer!r} of group {group!r}, and no batch has read them: another client handed them over (XCLAIM, "
            "rstream groups claim), or a run without noAck left them. A query with noAck cannot read them. Run it "
            "once without noAck: it reads them with its first batch. If they need not be read, stop it and acknowledge "
            f"them ({acknowledge_command(stream, group, consumer)})"
        )


def look_at_query(at: StreamOffset | None, look: Look) -> Look:
    """Return a look with the group at the query's position, unless an operator has moved it. If the checkpoint is an
    older copy, the query goes on from that position, once it has one, whatever was committed without a pending list
    since. Pure."""
    group, mark = look.group, look.mark
    if at is None or group is None:
        return look
    if mark is None:
        return look._replace(group=_delivered_up_to(at, group))
    if mark.is_seek and mark.id != at.position:
        return look
    is_passed_over = at.number > 0 and mark.no_ack and is_older(at, look)
    return look._replace(group=_delivered_up_to(at, group), mark=None if is_passed_over else mark)


def _delivered_up_to(at: StreamOffset, group: GroupState) -> GroupState:
    return group._replace(last_delivered=at.position, entries_read=at.read, lag=None)


def set_bookmarks(server: Server, member: Membership, committed: Offset, run: RunState) -> None:
    """Set the groups to the committed positions, with the number of entries read up to there if that is known. Those
    that this run has set there before are left out. Raises DataLossError, GroupMissingError."""
    changes = {
        # A mark shows that the query is active.
        stream: GroupChange(
            set_to=Start(at.position, at.read), mark=at.mark if at.number else None, touch=at.number > 0
        )
        for stream, at in committed.at.items()
        if run.settled is None or run.settled[stream] != at.position
    }
    change_groups(server, member, changes)
