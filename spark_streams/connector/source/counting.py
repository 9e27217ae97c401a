"""How many entries a stream has, or has ever had, in a range of IDs. Counted here, if neither the server nor the
checkpoint knows the number.

Counting is XRANGE, page by page. It needs neither Arrow nor numpy: `rstream groups` counts so, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from spark_streams.base.ids import MAX_ID, MIN_ID, StreamId
from spark_streams.connector.wire.connection import Argument, PageSizer, Reply, Server, pack, parse_replies
from spark_streams.connector.wire.xinfo import GroupInfo, StreamState, lag_of, stream_states

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
    """Return how many entries were not delivered to the group; counted, if its lag is not known."""
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
    not count (before Redis 7). Both sides are counted in turn, until one is complete. If entries below leave the stream
    meanwhile, the result from below is wrong, and counting begins again."""
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
    return None if head.added is None else head.added - head.length


def _from_both_sides(
    server: Server, stream: str, head: StreamState, added: int, position: StreamId
) -> tuple[int, bool]:
    """Return the same, and whether the upper side was complete first."""
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
    if after < last:
        for page in _walk(server, stream, b"(" + bytes(after), last):
            yield len(page)


def nth_from(server: Server, stream: str, position: StreamId, entries: int) -> StreamId:
    """Return the position this number of entries above another one, or below it if negative."""
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
    connection = server.connection_for(str(command[1]))
    connection.request(pack(*command))
    raw = connection.receive()
    reply: Reply = parse_replies(raw)[0]
    return [entry[0] for entry in server.answer(command[:2], reply)], len(raw)
