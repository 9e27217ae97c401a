"""The account with which a query begins in a stream: its position, and how many entries were ever added up to there. It
holds until the query's first batch there.

    mark of the group                  the checkpoint names       the query begins         entries up to there
    a begin, with their number         no position, or the same   at the mark              as the mark says
    a batch of this checkpoint         no position: an older copy at 0-0                   none
    a batch of another checkpoint      any, or none               at it, or at the group   counted; numbers go on
    a seek                             another position           at it; the mark moves it counted
    any other, or none                 any, or none               at it, or at the group   counted

Entries of the group that are pending for the query above its position were reserved by a run that was killed before an
offset. Those at or below it (old entries) were left by an earlier checkpoint. What an earlier checkpoint has read
may be acknowledged in part, also out of order (dead letters), and its mark shows that only afterwards. So what is not
pending up to the group's position is acknowledged, or was lost before this checkpoint began.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_streams.base.ids import MIN_ID, StreamId
from spark_streams.connector.source.commit_mark import Mark
from spark_streams.connector.source.group.account import count_read
from spark_streams.connector.source.group.compare import is_ahead
from spark_streams.connector.source.group.state import Look
from spark_streams.connector.source.offset import Offset, StreamOffset
from spark_streams.connector.wire.connection.server import Server


@dataclass(frozen=True)
class Begin:
    """Where a query begins in a stream, as far as nobody need be asked. read: how many entries were ever added up to
    there, None: to be counted; number, token: of the last batch there; mark: the commit mark, None: that of a begin."""

    position: StreamId
    read: int | None = None
    number: int = 0
    token: str | None = None
    mark: Mark | None = None


def begin_of(at: StreamOffset | None, start: Offset, look: Look) -> Begin:
    """Return where a query begins in a stream that has the group, by the table above. at: what the checkpoint says of
    the stream. Pure."""
    group, mark = look.group, look.mark
    assert group is not None
    if mark is None:
        return Begin(group.last_delivered if at is None else at.position)
    is_same = at in (None, StreamOffset(mark.id))
    if mark.is_begin and is_same and (known := mark.read_at_begin) is not None:
        return Begin(mark.id, known, 0, mark.token, mark)
    if mark.number and start.token and mark.checkpoint == start.checkpoint:
        return Begin(MIN_ID, 0, 0, "", mark)
    position = group.last_delivered if at is None else at.position
    if mark.number and not mark.is_seek:
        return Begin(position, None, mark.number, mark.token, Mark(position, mark.number, mark.token))
    is_sought = mark.is_seek and at is not None and mark.id != at.position
    return Begin(position, mark=mark if is_sought else None)


def first_account(server: Server, stream: str, start: Offset, look: Look) -> tuple[StreamOffset, Mark]:
    """Return where a query begins in a stream that has the group, and the commit mark for it."""
    begin, added = begin_of(start.at.get(stream), start, look), look.head.added or 0
    if begin.read is not None and begin.mark is not None:
        return StreamOffset(begin.position, 0, begin.token or "", begin.read, min(begin.read, added)), begin.mark
    read, missed = _read_before(server, stream, begin.position, look)
    mark_of_begin = Mark.at_begin(begin.position, read)
    token = mark_of_begin.token if begin.token is None else begin.token
    return StreamOffset(begin.position, begin.number, token, read, added, missed), begin.mark or mark_of_begin


def _read_before(server: Server, stream: str, position: StreamId, look: Look) -> tuple[int | None, int]:
    """Return how many entries were ever added up to the position of a group that the query has not created (None:
    others read from it), and how many lost entries the server does not count. What was lost by now is no loss of the
    query."""
    group, head = look.group, look.head
    assert group is not None
    if is_ahead(StreamOffset(position), head):
        return head.added, 0
    if not group.others:
        return count_read(server, stream, head, position), 0
    delivered = count_read(server, stream, head, group.last_delivered)
    is_known = delivered is not None and group.entries_read is not None
    return None, (delivered or 0) - (group.entries_read or 0) if is_known else 0


def first_account_without_group(server: Server, stream: str, at: StreamOffset, look: Look) -> StreamOffset:
    """Return where a query begins in a stream whose group is missing, with the number of entries up to there."""
    read = count_read(server, stream, look.head, at.position)
    return at._replace(token=Mark.at_begin(at.position, read).token, read=read, added=look.head.added or 0)


def with_entries_below(server: Server, stream: str, at: StreamOffset, look: Look) -> StreamOffset:
    """Return the same, with the number of entries up to the position at which the query begins. If that was above all
    entries, others may have been added below it since."""
    head = look.head
    if at.number or at.read is None or head.added is None or head.added <= at.added:
        return at
    if is_ahead(at, head):
        return at._replace(read=head.added, added=head.added)
    if head.first is None or head.first > at.position or not head.length or head.deleted > at.position:
        return at  # what is missing was above, or may have been
    read = count_read(server, stream, head, at.position)
    return at if read is None else at._replace(read=read, added=head.added)
