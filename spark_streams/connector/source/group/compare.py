"""The account of a stream: it compares the checkpoint with the server, and says where a query begins. Pure, but for
counting.

The rule: if the query is alone in its group, the checkpoint decides; if other consumers read from the group, too, the
group decides. `compare` returns at most one finding, and `repaired` where the query goes on (failOnDataLoss=false).

The account of a stream:

    entries added = entries read by the query + entries that the stream holds above + entries that are lost

For a query that is alone this is exact, and entries that XDEL has removed from the middle count when it has read past
them. In a shared group only the server counts what others have read (entries-read), and some servers never count lost
entries (`missed`), so the number is a lower bound.

A query begins in a stream with its position, and how many entries were ever added up to there. This holds until the
query's first batch there.

    mark of the group                  the checkpoint names       the query begins         entries up to there
    a begin, with their number         no position, or the same   at the mark              as the mark says
    a batch of this checkpoint         no position: an older copy at 0-0                   none
    a batch of another checkpoint      any, or none               at it, or at the group   counted; numbers go on
    a seek                             another position           at it; the mark moves it counted; numbers go on
    any other, or none                 any, or none               at it, or at the group   counted

Entries of the group that are pending for the query above its position were reserved by a run that was killed before an
offset. Those at or below it (old entries) were left by an earlier checkpoint. What an earlier checkpoint has read
may be acknowledged in part, also out of order (dead letters), and its mark shows that only afterwards. So what is not
pending up to the group's position is acknowledged, or was lost before this checkpoint began.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_streams.base.ids import MIN_ID, StreamId
from spark_streams.connector.source.commit_mark import SOUGHT, Mark, checkpoint_of
from spark_streams.connector.source.counting import count_read
from spark_streams.connector.source.group.recovery import Finding, GroupUse, Kind, Start
from spark_streams.connector.source.group.snapshot import GroupChange, GroupState, PendingAbove, StreamSnapshot
from spark_streams.connector.source.offset import Offset, StreamOffset
from spark_streams.connector.source.settled import Standing
from spark_streams.connector.wire.connection import Server
from spark_streams.connector.wire.xinfo import StreamState, stream_states

NOTHING_ABOVE = PendingAbove()


def lost_above(head: StreamState, position: StreamId, read: int | None) -> int | None:
    """Return how many entries above a position have left the stream; read: entries ever added up to the position. None:
    unknown until the position is at the end of the stream. Negative: entries below it are missing, too."""
    added = head.added
    if read is None or added is None:
        return None
    if head.length == 0 or (head.first is not None and head.first > position):
        return added - read - head.length
    if position >= head.top:
        return added - read
    return 0 if head.deleted <= position else None


def is_ahead(at: StreamOffset, head: StreamState) -> bool:
    """Whether the query begins above all entries of the stream so far. Entries that are added below are not for it."""
    return at.number == 0 and at.position > head.last


def at_position(at: StreamOffset, group: GroupState) -> GroupState:
    """Return the group as if it had delivered up to the query's position."""
    return group._replace(last_delivered=at.position, entries_read=at.read, lag=None)


def use_of(at: StreamOffset, snapshot: StreamSnapshot) -> GroupUse:
    """Return whether the query is alone in the group, now and at the last offset."""
    others = snapshot.group is not None and bool(snapshot.group.others)
    return GroupUse.SHARED if others or at.read is None else GroupUse.ALONE


def moved_since_checkpoint(at: StreamOffset, snapshot: StreamSnapshot, is_logged: bool = True) -> StreamOffset | None:
    """Return where the query goes on if its group was moved since the checkpoint: the commit mark says so. An operator
    has moved it with `rstream groups seek`, or a run has, and was killed before Spark logged the new position. The mark
    is then replaced by that of the last batch, also if it is at the checkpoint: after the next batch it would move the
    query back. is_logged: Spark has logged an offset; before, only the mark knows where an operator has moved the
    group. The number goes on after that of the seek: so the checkpoint that has it is an older copy from now on."""
    mark, group = snapshot.mark, snapshot.group
    if mark is None or group is None:
        return None
    is_of_last_batch = Standing(at, mark).is_known or mark.number == at.number == 0
    if not (mark.is_seek or is_of_last_batch):
        return None
    # A run with an older copy, from before the first batch, has moved the number, too.
    before, at = at, at._replace(number=max(at.number, mark.number if at.number or not mark.is_seek else 0))
    if mark.id == at.position:
        return at if (mark.is_seek and is_logged) or at != before else None
    is_there = group.last_delivered == mark.id and not group.others
    moved = at.moved(mark.id, group.entries_read if is_there else None)
    return moved if mark.is_seek else moved._replace(added=min(at.added, snapshot.head.added or 0))


def compare(
    stream: str, at: StreamOffset, snapshot: StreamSnapshot, above: PendingAbove, closed: int | None = None
) -> Finding | None:
    """Return what is wrong with a stream. closed: see `_Comparison`."""
    found = _Comparison(at, snapshot, above, closed).outcome()
    if found is None:
        return None
    kind, lost = found
    group, mark = snapshot.group, snapshot.mark
    others = () if group is None else group.others
    use = use_of(at, snapshot)
    return Finding(
        kind,
        stream,
        use,
        above=at.position,
        position=None if group is None else group.last_delivered,
        mark=None if mark is None else mark.id,
        lost=lost,
        is_exact=kind is Kind.ENTRIES_LOST and (use is GroupUse.ALONE or bool(closed)),
        other=others[0].name if others else "",
    )


@dataclass(frozen=True)
class _Comparison:
    at: StreamOffset
    snapshot: StreamSnapshot
    above: PendingAbove
    closed: int | None

    def outcome(self) -> tuple[Kind, int] | None:
        """Return the kind of the finding and the number of lost entries (at least)."""
        at, head, group = self.at, self.snapshot.head, self.snapshot.group
        unread = 1 if at.read is None else max(0, at.added - at.read)
        if not head.exists:
            return Kind.STREAM_MISSING, unread
        added = head.added or 0
        standing = Standing(at, self.snapshot.mark)
        if is_ahead(at, head) and (added >= at.added if group is None else not standing.is_older):
            if group is None:
                return Kind.GROUP_MISSING, 0
            return (Kind.GROUP_BELOW, 0) if group.last_delivered < at.position else None
        is_other = head.last < at.position or added < at.added
        if group is None:
            lost = lost_above(head, at.position, at.read) or 0
            return (Kind.STREAM_REPLACED, unread) if is_other or lost < 0 else (Kind.GROUP_MISSING, 0)
        if is_other and not standing.is_older:
            return Kind.SERVER_RESTORED, max(at.added - added, 1)
        if standing.is_older or (standing.is_lost and group.has_consumer):  # without, the group was created again
            return Kind.CHECKPOINT_OLDER, int(use_of(at, self.snapshot) is GroupUse.SHARED)
        delivered = group.last_delivered
        if use_of(at, self.snapshot) is GroupUse.SHARED:
            if delivered < at.position:
                return Kind.GROUP_BELOW, 0
            if not group.has_consumer and delivered > at.position:
                return Kind.GROUP_ABOVE, 1  # created again, or our consumer was deleted, with what it had pending
            if self.closed:
                return Kind.ENTRIES_LOST, self.closed
            return self._lost_in_shared_group()
        if delivered < at.position:
            lost = lost_above(head, at.position, at.read) or 0
            return (Kind.SERVER_RESTORED, 1) if lost < 0 else (Kind.GROUP_BELOW, 0)
        if delivered > at.position and self.above.last < delivered:
            return Kind.GROUP_ABOVE, 0
        assert at.read is not None
        return self._lost(delivered, at.read + self.above.count)

    def _lost(self, position: StreamId, read: int | None) -> tuple[Kind, int] | None:
        lost = lost_above(self.snapshot.head, position, read) or 0
        if lost < 0:
            return Kind.SERVER_RESTORED, 1
        return (Kind.ENTRIES_LOST, lost) if lost else None

    def _lost_in_shared_group(self) -> tuple[Kind, int] | None:
        """By the server's counter, or by ours. An XDEL above the group is certain, and its number unknown."""
        group, head = self.snapshot.group, self.snapshot.head
        assert group is not None
        lost = lost_above(head, group.last_delivered, read_in_shared_group(self.at, self.snapshot))
        if lost is None:
            return (Kind.ENTRIES_LOST, 1) if head.deleted > group.last_delivered else None
        return (Kind.ENTRIES_LOST, lost) if lost > 0 else None


def read_in_shared_group(at: StreamOffset, snapshot: StreamSnapshot) -> int | None:
    """Return how many entries were ever added up to the group: if nobody has read since, by our own count, or as the
    server knew it before XGROUP SETID came without ENTRIESREAD."""
    group = snapshot.group
    assert group is not None
    is_at_position = group.last_delivered == at.position
    if at.read is not None and is_at_position:
        return at.read
    if group.entries_read is None:
        return (at.group_read or at.mark.read_at_begin) if is_at_position else None
    return group.entries_read + at.missed


def has_forgotten(at: StreamOffset, snapshot: StreamSnapshot) -> bool:
    """Whether the server counts fewer entries that a shared group has read than it did (a failover, FACTS R90)."""
    group = snapshot.group
    if group is None or group.entries_read is None or group.last_delivered < at.position:
        return False
    is_shared = use_of(at, snapshot) is GroupUse.SHARED
    return is_shared and group.entries_read + at.missed < at.known_read


@dataclass(frozen=True)
class Repair:
    """What a lenient query does about a finding."""

    at: StreamOffset  # where it goes on
    command: str = ""  # CREATE or SETID; "": the group stays
    makes_stream: bool = False  # the snapshot has shown that the stream is missing
    creates_consumer: bool = False  # in an existing group
    reported_deletion: StreamId = MIN_ID  # the highest XDEL that is reported and that `at` does not count

    @property
    def change(self) -> GroupChange:
        start = Start(self.at.position, self.at.read)
        return GroupChange(
            create=start if self.command == "CREATE" else None,
            set_to=start if self.command == "SETID" else None,
            makes_stream=self.makes_stream,
            consumer=self.command == "CREATE" or self.creates_consumer,
            mark=self.at.mark if self.command or self.creates_consumer else None,
        )


def repaired(finding: Finding, at: StreamOffset, snapshot: StreamSnapshot, logged: StreamOffset) -> Repair:
    """Apply the rule. at: where the query was; logged: the same of the checkpoint, without corrections of this run."""
    head, group, kind = snapshot.head, snapshot.group, finding.kind
    is_alone = finding.group_use is GroupUse.ALONE
    added = head.added or 0
    if kind is Kind.ENTRIES_LOST and finding.is_exact and not is_alone and at.read is not None:
        return Repair(at._replace(read=min(at.read + finding.lost, added)), reported_deletion=head.deleted)
    if kind is Kind.ENTRIES_LOST:
        return _without_lost(finding.lost, at, snapshot, is_alone)
    if kind in (Kind.STREAM_MISSING, Kind.STREAM_REPLACED):
        return Repair(at.moved(MIN_ID, 0)._replace(added=added), "CREATE", not head.exists)
    if kind is Kind.GROUP_MISSING:
        return Repair(at, "CREATE")
    assert group is not None
    if kind is Kind.SERVER_RESTORED:
        position = min(at.position if is_alone else group.last_delivered, head.last)
        read = added if is_alone and position == head.last else None
        corrected = at.moved(position, read)._replace(added=added)
        return Repair(corrected, "SETID" if is_alone or group.last_delivered > head.last else "", creates_consumer=True)
    if is_alone:  # losses above the position are counted anew
        read = logged.read if at.number and logged.position == at.position else at.read
        more = min(lost_above(head, at.position, read) or 0, 0)  # negative: losses above the position were counted
        number = max(at.number, snapshot.mark.number if snapshot.mark else 0)  # as after a seek
        return Repair(at._replace(number=number, read=None if read is None else read + more), "SETID")
    if kind is Kind.CHECKPOINT_OLDER:
        if (mark := snapshot.mark) is None:
            return Repair(at, creates_consumer=True)
        return Repair(StreamOffset(mark.id, mark.number, mark.token, added=added, missed=at.missed))
    return Repair(at.moved(group.last_delivered, None, at.missed), creates_consumer=True)


def _without_lost(lost: int, at: StreamOffset, snapshot: StreamSnapshot, is_alone: bool) -> Repair:
    head, group = snapshot.head, snapshot.group
    assert group is not None
    added = head.added or 0
    is_at_position = group.last_delivered == at.position
    read = None if is_alone else read_in_shared_group(at, snapshot)
    if not is_alone and lost_above(head, group.last_delivered, read) is None:
        return Repair(at, reported_deletion=head.deleted)
    if at.read is not None and (is_alone or is_at_position):
        return Repair(at._replace(read=min(at.read + lost, added)))
    return Repair(at._replace(missed=at.missed + lost, group_read=(read or 0) + lost))


def is_proved_below(at: StreamOffset, head: StreamState, has_entry: bool) -> bool | None:
    """Whether the group of a query that is alone may be set to the checkpoint above it: all entries up to there exist,
    or have left in their order. None: some are missing. has_entry: the stream holds the entry at the position."""
    first = head.first or MIN_ID
    is_there = has_entry or is_ahead(at, head)
    if not is_there and head.length and first <= at.position > head.deleted:
        return None
    return is_there or first > at.position or head.length == 0


def at_end(at: StreamOffset, snapshot: StreamSnapshot) -> StreamOffset:
    """Return the same with numbers that the server knows now: at the end of the stream, and its own counter. At the end
    of a group without others, what has left the stream above it was read if nobody knows how many entries were."""
    head, group = snapshot.head, snapshot.group
    if group is None or head.added is None or is_ahead(at, head):
        return at
    is_alone = not group.others and not group.released
    is_at_end = at.position == group.last_delivered and (at.position >= head.top or head.length == 0)
    if at.read is None and is_alone and is_at_end:
        read = read_in_shared_group(at, snapshot)
        return at._replace(read=head.added if read is None else min(read, head.added))
    if group.entries_read is not None and at.read is None:
        more = min(lost_above(head, group.last_delivered, group.entries_read + at.missed) or 0, 0)
        return at._replace(missed=at.missed + more) if more else at
    return at


@dataclass(frozen=True)
class Begin:
    """Where a query begins in a stream, as far as nobody need be asked."""

    position: StreamId  # of the query
    read: int | None = None  # how many entries were ever added up to there; None: to be counted
    number: int = 0  # of the last batch there
    token: str | None = None  # of the last batch there
    mark: Mark | None = None  # the commit mark; None: that of a begin


def begin_of(at: StreamOffset | None, start: Offset, snapshot: StreamSnapshot) -> Begin:
    """Return where a query begins in a stream that has the group, by the table above. Pure."""
    group, mark = snapshot.group, snapshot.mark
    assert group is not None
    if mark is None:
        return Begin(group.last_delivered if at is None else at.position)
    is_same = at in (None, StreamOffset(mark.id))
    if mark.is_begin and is_same and (known := mark.read_at_begin) is not None:
        return Begin(mark.id, known, 0, mark.token, mark)
    if mark.number and start.token and mark.checkpoint == checkpoint_of(start.token):
        return Begin(MIN_ID, 0, 0, "", mark)
    position = group.last_delivered if at is None else at.position
    is_sought = mark.is_seek and at is not None and mark.id != at.position
    if not mark.number:
        return Begin(position, mark=mark if is_sought else None)
    number, token = mark.number, SOUGHT if mark.is_seek else mark.token
    if position != mark.id and mark.has_pending_list and not mark.is_seek:  # else that mark, restored, shows a move
        number, token = number + 1, SOUGHT
    return Begin(position, None, number, token, mark if is_sought else Mark(position, number, token))


def first_account(server: Server, stream: str, start: Offset, snapshot: StreamSnapshot) -> tuple[StreamOffset, Mark]:
    """Return where a query begins in a stream that has the group, and the commit mark for it."""
    begin, added = begin_of(start.at.get(stream), start, snapshot), snapshot.head.added or 0
    if begin.read is not None and begin.mark is not None:
        known = min(begin.read, added)
        at = StreamOffset(begin.position, token=begin.token or "", read=begin.read, added=known)
        return at, begin.mark
    read, missed = _read_before(server, stream, begin.position, snapshot)
    mark_of_begin = Mark.at_begin(begin.position, read)
    token = mark_of_begin.token if begin.token is None else begin.token
    at = StreamOffset(begin.position, begin.number, token, read=read, added=added, missed=missed)
    return at, begin.mark or mark_of_begin


def _read_before(server: Server, stream: str, position: StreamId, snapshot: StreamSnapshot) -> tuple[int | None, int]:
    """Return how many entries were ever added up to the position of a group that the query has not created (None:
    others read from it), and how many lost ones the server does not count."""
    group, head = snapshot.group, snapshot.head
    assert group is not None
    if is_ahead(StreamOffset(position), head):
        return head.added, 0
    if not group.others:
        return count_read(server, stream, head, position), 0
    delivered = count_read(server, stream, head, group.last_delivered)
    is_known = delivered is not None and group.entries_read is not None
    return None, (delivered or 0) - (group.entries_read or 0) if is_known else 0


def first_account_without_group(
    server: Server, stream: str, at: StreamOffset, snapshot: StreamSnapshot
) -> StreamOffset:
    """Return where a query begins in a stream whose group is missing, with the number of entries up to there."""
    read = count_read(server, stream, snapshot.head, at.position)
    return at._replace(token=Mark.at_begin(at.position, read).token, read=read, added=snapshot.head.added or 0)


def with_entries_below(server: Server, stream: str, at: StreamOffset, snapshot: StreamSnapshot) -> StreamOffset:
    """Return the same, with the entries up to where the query begins: others may have been added below since."""
    head = snapshot.head
    if at.number or at.read is None or head.added is None or head.added <= at.added:
        return at
    if is_ahead(at, head):
        return at._replace(read=head.added, added=head.added)
    if _may_lack_above(at, head):
        return at
    read = count_read(server, stream, head, at.position)
    if read is None or _may_lack_above(at, stream_states(server, [stream])[stream]):  # removed while we counted
        return at
    return at._replace(read=read, added=head.added)


def _may_lack_above(at: StreamOffset, head: StreamState) -> bool:
    """Whether what has left the stream was above the query's begin, or may have been."""
    return head.first is None or head.first > at.position or not head.length or head.deleted > at.position
