"""The account with which a query begins in a stream: its position, and how many entries were ever added up to there. It
holds until the query's first batch there.

    mark            the query begins          entries of the group that are pending for it
    of a begin      at the mark               above its position: reserved by a run that was killed before an offset
    none, a batch   where the group stands    at or below it (second backlog): left by an earlier checkpoint
    a seek          at the mark               the same

What an earlier checkpoint has read may be acknowledged in part, also out of order (dead letters), and its mark shows
that only afterwards. So what is not pending up to the group's position is acknowledged, or was lost before this
checkpoint began.
"""

from __future__ import annotations

from spark_streams.model.commit_mark import UNKNOWN, Mark
from spark_streams.model.ids import MIN_ID, StreamId
from spark_streams.source.group.account import count_read
from spark_streams.source.group.compare import is_ahead
from spark_streams.source.group.state import Look
from spark_streams.source.offset import Offset, StreamOffset
from spark_streams.wire.connection.server import Server


def first_account(server: Server, stream: str, start: Offset, look: Look) -> tuple[StreamOffset, Mark]:
    """Return where a query begins in a stream that has the group, and the commit mark for it."""
    at = start.at.get(stream)
    group, mark, head = look.group, look.mark, look.head
    assert group is not None
    added = head.added or 0
    is_own = mark is not None and mark.is_begin and at in (None, StreamOffset(mark.id))
    if mark is not None and is_own and (known := mark.read_at_begin) is not None:
        return StreamOffset(mark.id, 0, mark.token, known, min(known, added)), mark
    if mark is not None and mark.number and start.token and mark.checkpoint == start.checkpoint:
        return StreamOffset(MIN_ID, read=0, added=added), mark  # an older copy, which does not know the stream
    position = group.last_delivered if at is None else at.position
    is_sought = at is not None and mark is not None and mark.is_seek and mark.id != at.position
    if mark is not None and is_sought:  # since Spark has logged where the query begins
        position = mark.id
    number, token = (0, UNKNOWN) if mark is None else (mark.number, mark.token)
    read, missed = _read_before(server, stream, position, look)
    if number == 0:
        begins = Mark.at_begin(position, read)
        kept = mark if mark is not None and is_sought else begins  # until Spark has logged the new position
        return StreamOffset(position, 0, begins.token, read, added, missed), kept
    return StreamOffset(position, number, token, read, added, missed), Mark(position, number, token)


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
