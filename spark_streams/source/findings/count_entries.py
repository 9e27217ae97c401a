"""Counting the entries of a range, where neither the server nor the checkpoint knows how many they are.

XRANGE, page by page, looking at nothing but the pages' lengths. It costs as much as reading the range, so it is done
only once for a group that begins in the middle of a stream, where a server has come back from an older state, and with
noAck where entries were trimmed amid a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from spark_streams.errors import ServerReplyError
from spark_streams.model.ids import MAX_ID, MIN_ID, StreamId
from spark_streams.source.findings.account import held_above
from spark_streams.source.findings.snapshot import Evidence
from spark_streams.wire.connection.connection import pack
from spark_streams.wire.connection.named_errors import while_reading
from spark_streams.wire.connection.page_sizer import PageSizer
from spark_streams.wire.connection.server import Server
from spark_streams.wire.entries.decode import EntryPage, decode_entries
from spark_streams.wire.replies.xinfo import StreamState, stream_states

_FIRST_PAGE = 10  # entries; their size is not known yet
_PAGE_BYTES = 4 << 20
_LARGEST_PAGE = 10_000  # entries
_FROM_BELOW = 3  # how often what lies below a position is counted while entries leave the stream


def count_between(server: Server, stream: str, after: StreamId, last: StreamId) -> int:
    """How many entries with after < id ≤ last the stream holds. Raises ServerReplyError and kin."""
    return sum(_pages(server, stream, after, last))


def count_missing(server: Server, stream: str, ids: Sequence[bytes]) -> int:
    """How many of these entries the stream does not hold. Raises ServerError."""
    return sum(not reply for reply in server.execute_each([("XRANGE", stream, one, one) for one in ids]))


def count_read(server: Server, stream: str, head: StreamState, position: StreamId) -> int | None:
    """How many entries the stream has ever had up to a position, if none above it is lost yet; None where the server
    does not count (before Redis 7). Counted from both sides at a time, until one is done.

    What lies below the position may leave the stream meanwhile (others remove what is acknowledged): where some has,
    what was counted there is worth nothing, and it is counted anew.
    """
    for _ in range(_FROM_BELOW):
        if head.added is None:
            return None
        held = held_above(head, position)
        if held is not None:
            return head.added - held
        read, is_from_above = _from_both_sides(server, stream, head, head.added, position)
        if is_from_above:
            return read
        before, head = head, stream_states(server, [stream])[stream]
        if _left(head) == _left(before):
            return read
    return None if head.added is None else head.added - count_between(server, stream, position, head.last)


def _left(head: StreamState) -> int | None:
    """How many entries are in the stream no more."""
    return None if head.added is None else head.added - head.length


def _from_both_sides(
    server: Server, stream: str, head: StreamState, added: int, position: StreamId
) -> tuple[int, bool]:
    """How many entries the stream has ever had up to a position; whether that comes from what lies above it."""
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


def entries_up_to(server: Server, stream: str, head: StreamState, position: StreamId) -> Evidence:
    """Return how many entries the stream has ever had up to a position. Raises ServerReplyError and kin."""
    if any(_pages(server, stream, position.previous(), position)):
        return Evidence(has_entry=True)
    return Evidence(up_to=count_read(server, stream, head, position))


def _pages(server: Server, stream: str, after: StreamId, last: StreamId) -> Iterator[int]:
    """The lengths of the pages of a range."""
    sizer = PageSizer(_FIRST_PAGE, _LARGEST_PAGE, _PAGE_BYTES)
    there = server.connection_for(stream)
    while after < last:
        there.request(pack("XRANGE", stream, b"(" + bytes(after), bytes(last), "COUNT", sizer.size))
        reply = there.receive()
        try:
            page = decode_entries(reply)
        except ServerReplyError as error:
            raise while_reading(f"XRANGE of {stream!r} at {server.address}", error, stream) from None
        entries = page.count + page.deleted
        if entries:
            yield entries
        if entries < sizer.size or page.last_id is None:
            return
        after = page.last_id
        sizer.learn(entries, len(reply))


def nth_from(server: Server, stream: str, position: StreamId, entries: int) -> StreamId:
    """The position that lies so many entries above another one, or below it where they are less than 0; the stream's
    end where there are not so many. Raises ServerReplyError and kin."""
    if entries > 0:
        at = position
        for page in _walk(server, stream, b"(" + bytes(position), MAX_ID, entries):
            at = page.last_id or at
        return at
    found, at = 0, position
    # The position is the entry below the last one of these.
    for page in _walk(server, stream, bytes(position), MIN_ID, 1 - entries):
        found, at = found + page.count, page.last_id or at
    return at if found > -entries else MIN_ID


def ids_between(server: Server, stream: str, first: StreamId, last: StreamId) -> Iterator[list[bytes]]:
    """The ids of the entries with first ≤ id ≤ last, page by page. Raises ServerReplyError and kin."""
    if first <= last:
        for page in _walk(server, stream, bytes(first), last):
            yield page.ids().to_pylist()


def _walk(server: Server, stream: str, bound: bytes, end: StreamId, most: int | None = None) -> Iterator[EntryPage]:
    """The pages of a range, so many entries at most: downwards where it ends at MIN_ID."""
    command, sizer = "XREVRANGE" if end == MIN_ID else "XRANGE", PageSizer(_FIRST_PAGE, _LARGEST_PAGE, _PAGE_BYTES)
    there = server.connection_for(stream)
    while most is None or most > 0:
        asked = sizer.size if most is None else min(sizer.size, most)
        there.request(pack(command, stream, bound, bytes(end), "COUNT", asked))
        reply = there.receive()
        try:
            page = decode_entries(reply)
        except ServerReplyError as error:
            raise while_reading(f"{command} of {stream!r} at {server.address}", error, stream) from None
        if page.last_id is not None:
            yield page
        if page.last_id is None or page.count < asked:
            return
        bound = b"(" + bytes(page.last_id)
        most = None if most is None else most - page.count
        sizer.learn(page.count, len(reply))
