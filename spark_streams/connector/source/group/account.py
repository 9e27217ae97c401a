"""The account of a stream: how many entries were ever added up to a position. Counted here, if neither the server nor
the checkpoint knows the number.

Counting is XRANGE, page by page, using only the pages' lengths and IDs. It costs as much as reading the range. So it is
done only once for a group that begins in the middle of a stream, if a server has returned to an older state, and for
the last entries of a batch whose number a scratch group cannot prove (trigger.bookmark). It needs neither Arrow nor
numpy: `rstream groups` counts so, too.

A query begins in a stream with its position, and how many entries were ever added up to there. This holds until the
query's first batch there.

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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spark_streams.base.ids import MAX_ID, MIN_ID, StreamId
from spark_streams.connector.source.commit_mark import Mark
from spark_streams.connector.source.group.compare import is_ahead
from spark_streams.connector.source.group.snapshot import StreamSnapshot
from spark_streams.connector.source.offset import Offset, StreamOffset
from spark_streams.connector.wire.connection.connection import Argument, PageSizer, Reply, pack
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.replies import parse_replies
from spark_streams.connector.wire.replies.xinfo import GroupInfo, StreamState, lag_of, stream_states

_FIRST_PAGE = 10  # entries; their sizes are still unknown
_PAGE_BYTES = 4 << 20
_LARGEST_PAGE = 10_000  # entries
_ATTEMPTS = 3  # at counting from below while entries leave the stream


def held_above(head: StreamState, position: StreamId) -> int | None:
    """Return how many entries the stream has above a position; None: unknown."""
    if head.length == 0 or position >= head.last:
        return 0
    return head.length if head.first is not None and head.first > position else None


def count_between(server: Server, stream: str, after: StreamId, last: StreamId) -> int:
    """Return how many entries with after < ID ≤ last the stream has. Raises ServerReplyError."""
    return sum(_pages(server, stream, after, last))


def undelivered(server: Server, stream: str, group: GroupInfo, head: StreamState) -> int:
    """Return how many entries the stream has that were not delivered to the group; counted, if its lag is not known.
    Raises ServerReplyError."""
    lag = lag_of(group, head.length, head.first, head.top)
    return count_between(server, stream, group.last_delivered, head.last) if lag is None else lag


def count_missing(server: Server, stream: str, ids: Sequence[bytes]) -> int:
    """Return how many of these entries the stream does not have. Raises ServerError."""
    return sum(not reply for reply in server.execute_each([("XRANGE", stream, entry_id, entry_id) for entry_id in ids]))


def count_lost_alone(
    server: Server, stream: str, head: StreamState, position: StreamId, read: int, is_unread_above: bool
) -> int | None:
    """Return how many entries have left the stream unread, of a group in which the query was alone up to a position;
    None: not known. read: entries that were added up to there, as the query knows; is_unread_above: nobody has read
    above it either. Otherwise others may have removed what is missing there, and only what is below counts."""
    for _ in range(_ATTEMPTS):
        is_whole = head.deleted <= position and (head.length == 0 or head.first is None or head.first <= position)
        if head.added is None or not (is_unread_above or is_whole):
            return None
        held = count_between(server, stream, position, head.last)
        before, head = head, stream_states(server, [stream])[stream]
        if _removed(head) == _removed(before) and before.added is not None:
            return max(0, before.added - read - held)
    return None


def count_read(server: Server, stream: str, head: StreamState, position: StreamId) -> int | None:
    """Return how many entries the stream has ever had up to a position, if none above it is lost; None: the server does
    not count (before Redis 7). Both sides are counted in turn, until one is complete.

    Entries below the position may leave the stream meanwhile, because other clients remove acknowledged ones. The
    result from below is then wrong, and counting begins again.
    """
    for _ in range(_ATTEMPTS):
        if head.added is None:
            return None
        held = held_above(head, position)
        if held is not None:
            return head.added - held
        read, is_from_above = _from_both_sides(server, stream, head, head.added, position)
        if is_from_above:
            return read
        before, head = head, stream_states(server, [stream])[stream]
        if _removed(head) == _removed(before):
            return read
    return None if head.added is None else head.added - count_between(server, stream, position, head.last)


def _removed(head: StreamState) -> int | None:
    """Return how many entries have left the stream."""
    return None if head.added is None else head.added - head.length


def _from_both_sides(
    server: Server, stream: str, head: StreamState, added: int, position: StreamId
) -> tuple[int, bool]:
    """Return how many entries the stream has ever had up to a position, and whether the upper side was
    complete first."""
    below = above = 0
    upwards = _pages(server, stream, position, head.last)
    downwards = _pages(server, stream, MIN_ID, position)
    while True:
        page = next(upwards, None)
        if page is None:
            return added - above, True
        above += page
        page = next(downwards, None)
        if page is None:
            return added - (head.length - below), False
        below += page


def _pages(server: Server, stream: str, after: StreamId, last: StreamId) -> Iterator[int]:
    """Iterate over the lengths of the pages of a range."""
    if after < last:
        for page in _walk(server, stream, b"(" + bytes(after), last):
            yield len(page)


def nth_from(server: Server, stream: str, position: StreamId, entries: int) -> StreamId:
    """Return the position this number of entries above another one, or below it if the number is negative. If the
    stream has fewer, return its end. Raises ServerReplyError."""
    if entries > 0:
        last_id = position
        for page in _walk(server, stream, b"(" + bytes(position), MAX_ID, entries):
            last_id = StreamId.parse(page[-1])
        return last_id
    count, last_id = 0, position
    # The position is that of the entry below the last one of these.
    for page in _walk(server, stream, bytes(position), MIN_ID, 1 - entries):
        count, last_id = count + len(page), StreamId.parse(page[-1])
    return last_id if count > -entries else MIN_ID


def ids_between(server: Server, stream: str, first: StreamId, last: StreamId) -> Iterator[list[bytes]]:
    """Iterate over the IDs of the entries with first ≤ ID ≤ last, page by page. Raises ServerReplyError."""
    if first <= last:
        yield from _walk(server, stream, bytes(first), last)


def _walk(server: Server, stream: str, bound: bytes, end: StreamId, limit: int | None = None) -> Iterator[list[bytes]]:
    """Iterate over the IDs of the entries of a range, page by page, up to `limit` entries; downwards if the range ends
    at MIN_ID. No page is empty. Raises ServerReplyError."""
    command, sizer = "XREVRANGE" if end == MIN_ID else "XRANGE", PageSizer(_FIRST_PAGE, _LARGEST_PAGE, _PAGE_BYTES)
    while limit is None or limit > 0:
        requested = sizer.size if limit is None else min(sizer.size, limit)
        page, size = _page(server, (command, stream, bound, bytes(end), "COUNT", requested))
        if page:
            yield page
        if len(page) < requested:
            return
        bound = b"(" + page[-1]
        limit = None if limit is None else limit - len(page)
        sizer.learn(len(page), size)


def _page(server: Server, command: tuple[Argument, ...]) -> tuple[list[bytes], int]:
    """Return the IDs of the entries of a reply, and its size in bytes."""
    connection = server.connection_for(str(command[1]))
    connection.request(pack(*command))
    raw = connection.receive()
    reply: Reply = parse_replies(raw)[0]
    return [entry[0] for entry in server.answer(command[:2], reply)], len(raw)


@dataclass(frozen=True)
class Begin:
    """Where a query begins in a stream, as far as nobody need be asked."""

    position: StreamId  # of the query
    read: int | None = None  # how many entries were ever added up to there; None: to be counted
    number: int = 0  # of the last batch there
    token: str | None = None  # of the last batch there
    mark: Mark | None = None  # the commit mark; None: that of a begin


def begin_of(at: StreamOffset | None, start: Offset, snapshot: StreamSnapshot) -> Begin:
    """Return where a query begins in a stream that has the group, by the table above. at: what the checkpoint says of
    the stream. Pure."""
    group, mark = snapshot.group, snapshot.mark
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
    others read from it), and how many lost entries the server does not count. What was lost by now is no loss of the
    query."""
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
    """Return the same, with the number of entries up to the position at which the query begins. If that was above all
    entries, others may have been added below it since."""
    head = snapshot.head
    if at.number or at.read is None or head.added is None or head.added <= at.added:
        return at
    if is_ahead(at, head):
        return at._replace(read=head.added, added=head.added)
    if head.first is None or head.first > at.position or not head.length or head.deleted > at.position:
        return at  # what is missing was above, or may have been
    read = count_read(server, stream, head, at.position)
    return at if read is None else at._replace(read=read, added=head.added)
