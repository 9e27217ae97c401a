"""Read the parts of a task page by page. Many small ranges share a page; a large range takes many pages.

The commands depend on how the entries of a range are found (source.partitioning):
- ALL: XRANGE, and every entry is ours;
- PENDING: XRANGE, and XPENDING of the same range, whose IDs select our entries. It counts no delivery, as XREADGROUP
  would (FACTS R5, R8);
- PENDING, with few entries of ours: XPENDING first, then XRANGE for each ID;
- IDs: XRANGE for each ID.
If delivery counts are needed, the pending entries of whole ranges are requested, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.base.ids import StreamId
from spark_streams.connector.errors import RStreamError, ServerReplyError, ServerUnreachableError
from spark_streams.connector.keys import is_returned
from spark_streams.connector.source.group_client import Membership
from spark_streams.connector.source.limits import LIMITS, Limits
from spark_streams.connector.source.offset import Range
from spark_streams.connector.source.partitioning import ALL, Part
from spark_streams.connector.source.pending_list import TIME, pack_pending, split_time
from spark_streams.connector.wire import pending_page
from spark_streams.connector.wire.connection import Connection, PageSizer, ReplyTooLargeError, pack
from spark_streams.connector.wire.entry_page import EntryPage, FilteredPage, decode_entries, decode_replies
from spark_streams.connector.wire.lines import Index, Mask
from spark_streams.connector.wire.named_errors import reading_error
from spark_streams.connector.wire.replies import is_no_group
from spark_streams.connector.wire.session import Session

MIN_JUDGED = 32  # entries that are needed to decide whether a range is sparse
_SPARSE = 4  # if fewer than one in four entries of a range are ours, it is read entry by entry


# -- requests ----------------------------------------------------------------------------------------------------------


@dataclass
class RangeCursor:
    """Position of a task in one range."""

    range: Range  # to read
    is_all: bool  # all its entries are ours
    after: StreamId  # all entries up to here are read
    by_id: bool  # entries are read one by one
    ids: pa.Array | None = None  # those to read, as packed arguments
    ids_read: int = 0  # how many of these are read
    ours: int = 0  # our entries so far
    ended: bool = False  # there are no more

    @classmethod
    def at_begin(cls, part: Part) -> RangeCursor:
        ids = pending_page.arguments_of(part.by) if isinstance(part.by, bytes) else None
        return cls(part.range, part.by == ALL, part.range.after, by_id=ids is not None, ids=ids)

    def page_size(self, limit: int) -> int:
        """Return how many entries to request, at most `limit`."""
        remaining = self.range.count - self.ours
        if remaining <= 0:  # the count was an estimate
            return limit
        return min(limit, remaining if self.is_all else max(2 * remaining, 2 * MIN_JUDGED))

    def advance(self, to: StreamId, ours: int) -> None:
        """Move the cursor to `to`, with this number of further entries of ours."""
        self.after = to
        self.ours += ours
        self.ended = not to < self.range.last


@dataclass(frozen=True)
class IdSelection:
    arguments: pa.Array  # their packed IDs
    deliveries: pa.Array | None  # of each entry, None if unknown
    up_to: StreamId  # all our entries up to this ID are selected


@dataclass(frozen=True)
class PageRequest:
    cursors: list[RangeCursor]
    counts: list[int]  # entries per cursor
    selection: IdSelection | None = None  # entries by ID, then of one cursor

    def max_reply_bytes(self, limit: int) -> int | None:
        """Return the maximum size of the reply: `limit`, or None (unlimited) for a single entry."""
        return None if sum(self.counts) == 1 else limit

    def ended_ranges(self) -> list[tuple[Range, int]]:
        """Return the ranges that are read to their end, with the number of our entries in each."""
        return [(cursor.range, cursor.ours) for cursor in self.cursors if cursor.ended]

    def streams(self, rows: Index) -> str | pa.Array:
        """Return the stream of all rows, or an array with the stream of each row. rows: number of rows per cursor."""
        if len(self.cursors) == 1:
            return self.cursors[0].range.stream
        names = pa.array([cursor.range.stream for cursor in self.cursors], pa.string())
        return names.take(pa.array(np.repeat(np.arange(len(rows)), rows)))

    def read_up_to(self, entries: EntryPage, rows: Index) -> list[StreamId]:
        """Return per cursor the ID up to which the reply is complete: its last ID if it is full, or else the end of the
        range."""
        if len(rows) == 1:
            last_id = entries.last_id
            return [last_id if last_id is not None and rows[0] == self.counts[0] else self.cursors[0].range.last]
        last = entries.ids().take(pa.array(np.maximum(np.cumsum(rows) - 1, 0))).to_pylist() if entries.count else []
        ends = []
        for index, cursor in enumerate(self.cursors):
            end = cursor.range.last
            is_full = rows[index] == self.counts[index] and last[index] != bytes(end)
            ends.append(StreamId.parse(last[index]) if is_full else end)
        return ends


# -- ownership ---------------------------------------------------------------------------------------------------------
# Pure: pages in, positions and masks out.


def match_pending(
    request: PageRequest, entries: EntryPage, rows: Index, pages: Mapping[int, pending_page.PendingPage]
) -> tuple[Mask, pa.Array]:
    """Compare the rows of each cursor with its pending page, and advance the cursors. Return which rows are ours, and
    the delivery count of each (int64), null if the entry is not pending.

    rows: number of rows per cursor; pages: by index of the cursor. A cursor without a page owns all its rows.
    """
    positions = _pending_positions(entries, rows, pages)
    ends = request.read_up_to(entries, rows)
    ours = np.ones(entries.count, np.bool_)
    stop = 0
    for index, (cursor, count) in enumerate(zip(request.cursors, rows.tolist(), strict=True)):
        start, stop = stop, stop + count
        page = pages.get(index)
        if page is not None:
            # Beyond the end of either reply it is unknown which entries are ours.
            if page.last is not None and page.listed == request.counts[index]:
                ends[index] = min(ends[index], page.last)
            if cursor.is_all:
                ours[start:stop] = _up_to(entries.ids().slice(start, count), ends[index])
            else:
                ours[start:stop] = positions.slice(start, count).is_valid().to_numpy(zero_copy_only=False)
                cursor.by_id = count >= MIN_JUDGED and int(ours[start:stop].sum()) * _SPARSE < count
        cursor.advance(ends[index], int(ours[start:stop].sum()))
    deliveries = np.concatenate([np.empty(0, np.int64), *[page.deliveries for page in pages.values()]])
    return ours, pa.array(deliveries).take(positions)


def _pending_positions(entries: EntryPage, rows: Index, pages: Mapping[int, pending_page.PendingPage]) -> pa.Array:
    """Return the position of each row among the pending entries of all pages, null if it is not pending."""
    owners = np.repeat(np.arange(len(rows)), rows)
    pending = np.repeat(np.array(list(pages), np.int64), [page.count for page in pages.values()])
    texts = pending_page.texts_of(b"".join([page.ids for page in pages.values()]))
    return pc.index_in(_keys(owners, entries.ids()), value_set=_keys(pending, texts))


def _keys(owners: Index, ids: pa.Array) -> pa.Array:
    """Return keys of the cursor's index and the ID: two streams may have the same ID."""
    return pc.binary_join_element_wise(pa.array(owners).cast(pa.string()).cast(pa.binary()), ids, b"/")


def _up_to(ids: pa.Array, last: StreamId) -> Mask | bool:
    """Return which of these ascending IDs are not above `last`."""
    if len(ids) == 0 or StreamId.parse(ids[-1].as_py()) <= last:
        return True
    return np.array([StreamId.parse(entry) <= last for entry in ids.to_pylist()], np.bool_)


# -- fetcher -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FetchedPage:
    entries: EntryPage  # those of ours
    streams: str | pa.Array  # of all rows, or of each
    deliveries: pa.Array | None  # int64 per row, if needed
    ended: list[tuple[Range, int]]  # ranges of which this is the last page, with the number of our entries
    received: int  # how many entries the reply has, also of others


class Fetcher:
    def __init__(
        self,
        server: Session,
        member: Membership,
        parts: Sequence[Part],
        deliveries: bool,  # each page has the delivery counts of its rows
        group_may_be_missing: bool = False,  # no entry is ours if a group is missing; otherwise that is an error
        limits: Limits = LIMITS,
    ) -> None:
        self._server = server
        self._member = member
        self._cursors = [RangeCursor.at_begin(part) for part in parts]
        self._deliveries = deliveries
        self._group_may_be_missing = group_may_be_missing
        self._limits = limits
        self._sizer = PageSizer(limits.first_page, limits.largest_page, limits.page_bytes)
        self._connection: Connection | None = None  # to the server of the requested page

    def pages(self) -> Iterator[FetchedPage]:
        """Yield all entries. After a lost connection, entries that were not yielded yet are requested again. The next
        page is requested before the last one is yielded, so that server and reader work at the same time.

        Raises GroupMissingError, ServerError, RetriesExhaustedError.
        """
        request: PageRequest | None = None
        while True:
            try:
                request = request or self._request_page()
                if not request.cursors:
                    return
                assert self._connection is not None
                reply = self._connection.receive(request.max_reply_bytes(self._limits.max_reply_bytes))
                by_id = request.selection is not None
                page = self._page_by_id(request, reply) if by_id else self._page(self._connection, request, reply)
            except ReplyTooLargeError:
                self._make_smaller(request)
                request = None
                continue
            except RStreamError as error:
                if request is not None and isinstance(error, ServerUnreachableError):
                    self._sizer.lost()
                self._server.wait_before_retry(error)
                request = None
                continue
            self._server.backoff.succeeded()
            self._sizer.learn(page.received, len(reply))
            self._cursors = [cursor for cursor in self._cursors if not cursor.ended]
            request = None
            try:
                request = self._request_page()
            except ServerUnreachableError:
                pass  # requested again after this page
            except ReplyTooLargeError:
                self._make_smaller(None)
            yield page

    def _make_smaller(self, request: PageRequest | None) -> None:
        """Close the connection with the rest of a reply that is too large, so that neither side buffers it, and make
        pages smaller. request: None if the reply exceeded its limit before the request was complete."""
        self._server.close()
        self._sizer.too_large(None if request is None else sum(request.counts))

    def _request_page(self) -> PageRequest:
        """Send the request for the next page: of the first cursors that have not ended, as many as fit.

        A page has one part of a stream: the next part is requested when the end of this one is known. In a cluster,
        cursors of other nodes wait for their own pages.
        """
        request = PageRequest([], [])
        remaining = self._sizer.size
        streams = set()
        on_other_nodes = set()
        connection: Connection | None = None
        for cursor in self._cursors:
            if remaining <= 0 or cursor.range.stream in streams or (cursor.by_id and request.cursors):
                break
            if request.cursors and is_returned(cursor.range.stream) != is_returned(request.cursors[0].range.stream):
                break  # their entries have another shape
            owner = self._server.connection_for(cursor.range.stream)
            if cursor.range.stream in on_other_nodes or owner is not (connection := connection or owner):
                on_other_nodes.add(cursor.range.stream)
                continue
            count = cursor.page_size(remaining)
            if cursor.by_id:
                return self._request_by_id(cursor, count)
            request.cursors.append(cursor)
            request.counts.append(count)
            streams.add(cursor.range.stream)
            remaining -= count
        pairs = list(zip(request.cursors, request.counts, strict=True))
        ranges = [
            pack("XRANGE", cursor.range.stream, b"(" + bytes(cursor.after), bytes(cursor.range.last), "COUNT", count)
            for cursor, count in pairs
        ]
        pending = [self._pack_pending(cursor, count) for cursor, count in pairs if self._needs_pending(cursor)]
        max_bytes = request.max_reply_bytes(self._limits.max_reply_bytes)
        self._connection = connection or self._connection
        if connection is not None and pending:
            connection.request_separately([b"".join(ranges), TIME + b"".join(pending)], max_bytes)
        elif connection is not None:
            connection.request(*ranges, max_bytes=max_bytes)
        return request

    def _request_by_id(self, cursor: RangeCursor, count: int) -> PageRequest:
        selection = self._select_ids(cursor, count)
        head = pack("XRANGE", cursor.range.stream, "-", "-").removesuffix(2 * b"$1\r\n-\r\n")
        request = PageRequest([cursor], [len(selection.arguments)], selection)
        commands = [head + entry + entry for entry in selection.arguments.to_pylist()]
        self._connection = self._server.connection_for(cursor.range.stream)
        self._connection.request(*commands, max_bytes=request.max_reply_bytes(self._limits.max_reply_bytes))
        return request

    def _select_ids(self, cursor: RangeCursor, count: int) -> IdSelection:
        """Return the next IDs of ours: those of the range, or else the pending ones (one more round trip)."""
        if cursor.ids is not None:
            ids = cursor.ids.slice(cursor.ids_read, count)
            if cursor.ids_read + count >= len(cursor.ids):
                return IdSelection(ids, None, cursor.range.last)
            return IdSelection(ids, None, StreamId.parse(pending_page.texts_of(ids[-1].as_py())[0].as_py()))
        connection = self._server.connection_for(cursor.range.stream)
        connection.request(TIME, self._pack_pending(cursor, count))
        page = self._decode_pending(connection, [cursor], connection.receive())[0]
        up_to = page.last if page.last is not None and page.listed == count else cursor.range.last
        return IdSelection(pending_page.arguments_of(page.ids), pa.array(page.deliveries), up_to)

    def _needs_pending(self, cursor: RangeCursor) -> bool:
        return self._deliveries or not cursor.is_all

    def _pack_pending(self, cursor: RangeCursor, count: int) -> bytes:
        return pack_pending(self._member, replace(cursor.range, after=cursor.after), count)

    def _page_by_id(self, request: PageRequest, reply: memoryview) -> FetchedPage:
        cursor, selection = request.cursors[0], request.selection
        assert selection is not None
        entries, deliveries = decode_entries(b"*0\r\n"), selection.deliveries
        if request.counts[0]:
            entries, counts = self._decode(request, reply, request.counts[0])
            if deliveries is not None:
                deliveries = deliveries.filter(pa.array(np.array(counts, np.bool_)))
        if self._deliveries and deliveries is None:
            deliveries = pa.nulls(entries.count, pa.int64())
        cursor.ids_read += request.counts[0]
        cursor.advance(selection.up_to, entries.count)
        return FetchedPage(entries, cursor.range.stream, deliveries, request.ended_ranges(), entries.count)

    def _page(self, connection: Connection, request: PageRequest, reply: memoryview) -> FetchedPage:
        """Decode entries that were requested by ranges, and compare them with the pending ones if needed."""
        indexes = [index for index, cursor in enumerate(request.cursors) if self._needs_pending(cursor)]
        ranges, pending = connection.split_replies(reply) if indexes else (reply, reply[:0])
        entries, counts = self._decode(request, ranges, len(request.cursors))
        rows = entries.rows_of(counts)
        streams = request.streams(rows)
        if not indexes:
            ends = request.read_up_to(entries, rows)
            for cursor, end, count in zip(request.cursors, ends, rows.tolist(), strict=True):
                cursor.advance(end, count)
            return FetchedPage(entries, streams, None, request.ended_ranges(), entries.count)
        pages = self._decode_pending(connection, [request.cursors[index] for index in indexes], pending)
        is_ours, counts_of_rows = match_pending(request, entries, rows, dict(zip(indexes, pages, strict=True)))
        received, deliveries = entries.count, counts_of_rows if self._deliveries else None
        if not is_ours.all():
            ours = np.flatnonzero(is_ours)
            entries = FilteredPage(entries, ours)
            streams = streams if isinstance(streams, str) else streams.take(pa.array(ours))
            deliveries = None if deliveries is None else deliveries.take(pa.array(ours))
        return FetchedPage(entries, streams, deliveries, request.ended_ranges(), received)

    def _decode(self, request: PageRequest, reply: memoryview, count: int) -> tuple[EntryPage, list[int]]:
        try:
            return decode_replies(reply, count)
        except ServerReplyError as error:
            names = ", ".join(repr(cursor.range.stream) for cursor in request.cursors[:3])
            more = ", …" if len(request.cursors) > 3 else ""
            where = f"XRANGE of {names}{more} at {self._server.address}"
            raise reading_error(where, error, request.cursors[0].range.stream) from None

    def _decode_pending(
        self, connection: Connection, cursors: list[RangeCursor], replies: memoryview
    ) -> list[pending_page.PendingPage]:
        """Return a pending page per cursor. replies: they begin with that to TIME. Raises the first named error."""
        now, replies = split_time(connection, replies)
        pages: list[pending_page.PendingPage] = []
        known = [is_no_group] if self._group_may_be_missing else []
        for reply, cursor in zip(pending_page.decode_pending(replies, len(cursors)), cursors, strict=True):
            page = connection.answer(("XPENDING", cursor.range.stream, self._member.group), reply, *known)
            if is_no_group(page):
                pages.append(pending_page.NOTHING_PENDING)
            else:
                # The entries of a whole range are ours, whenever they were delivered.
                pages.append(page if cursor.is_all else page.delivered_until(cursor.range.until, now))
        return pages
