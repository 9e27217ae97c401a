"""The entries of some ranges, a page at a time. Many small ranges share a page, a large one takes many.

How a run is read depends on what is known of it:
- owned: XRANGE, and every entry is ours;
- shared: XRANGE beside XPENDING of the same range, and the ids of the one choose from the other. A pending list costs
  the server less to tell than entries, and reading counts no delivery, as XREADGROUP would (FACTS R5, R8);
- shared, and few of the entries there are ours: XPENDING first, then XRANGE for each id alone.
Where delivery counts are wanted, owned runs are asked for their pending entries, too.

A page is kept near Limits.page_bytes by what the last one's entries measured. Entries may suddenly be large: a reply
that grows beyond Limits.max_reply_bytes is given up together with its connection, so that neither side holds it, and
asked for again in small pieces. The next page is asked for before the last one is handed out: the server works while
its reader does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_streams.errors import GroupMissingError, RStreamError, ServerReplyError, ServerUnreachableError
from spark_streams.model.ids import StreamId
from spark_streams.model.keys import is_returned
from spark_streams.source.entry_range import EntryRange
from spark_streams.source.limits import LIMITS, Limits
from spark_streams.source.membership import Membership
from spark_streams.source.pending_list import PendingRange, pack_pending
from spark_streams.source.task.ownership import match
from spark_streams.source.task.range_cursor import Asked, Chosen, Reading
from spark_streams.wire.connection.connection import Connection, ReplyError, ReplyTooLargeError, pack
from spark_streams.wire.connection.named_errors import while_reading
from spark_streams.wire.connection.page_sizer import PageSizer
from spark_streams.wire.entries.decode import EntryPage, decode_entries, decode_replies
from spark_streams.wire.entries.filtered_page import FilteredPage
from spark_streams.wire.entries.pending_page import NOTHING_PENDING, PendingPage, arguments_of, decode_pending, texts_of
from spark_streams.wire.session import Session


@dataclass(frozen=True)
class Page:
    """The first `rows` rows of `entries`; streams: of all rows, or of each; deliveries: int64 per row, where wanted.
    ended: ranges that this page is the last of, and how many entries were found of each; received: entries that came,
    ours or not."""

    entries: EntryPage
    rows: int
    streams: str | pa.Array
    deliveries: pa.Array | None
    ended: list[tuple[EntryRange, int]]
    received: int


class Fetch:
    """Reads `ranges` through `server`. may_vanish: where a group is gone, nothing is ours; else that is an error."""

    def __init__(
        self,
        server: Session,
        member: Membership,
        ranges: Sequence[EntryRange],
        deliveries: bool,
        may_vanish: bool = False,
        limits: Limits = LIMITS,
    ) -> None:
        self._server = server
        self._member = member
        self._readings = [Reading.of(entries) for entries in ranges]
        self._deliveries = deliveries
        self._may_vanish = may_vanish
        self._limits = limits
        self._sizer = PageSizer(limits.first_page, limits.largest_page, limits.page_bytes)
        self._there: Connection | None = None  # the server that was asked for the page that is under way

    def pages(self) -> Iterator[Page]:
        """All entries. A connection that breaks is made again, and what was not yet handed out is asked for again.

        Raises GroupMissingError, ServerError, RetriesExhaustedError.
        """
        asked: Asked | None = None
        while True:
            try:
                asked = asked or self._ask()
                if not asked.readings:
                    return
                assert self._there is not None
                reply = self._there.receive(asked.max_reply_bytes(self._limits.max_reply_bytes))
                by_id = asked.chosen is not None
                page = self._by_id(asked, reply) if by_id else self._in_range(self._there, asked, reply)
            except ReplyTooLargeError:
                self._ask_for_less(asked)
                asked = None
                continue
            except RStreamError as error:
                self._server.again(error)
                asked = None
                continue
            self._server.backoff.succeeded()
            self._sizer.learn(page.received, len(reply))
            self._readings = [reading for reading in self._readings if not reading.ended]
            asked = None
            try:
                asked = self._ask()
            except ServerUnreachableError:
                pass  # it is asked again when this page has been used
            except ReplyTooLargeError:
                self._ask_for_less(None)
            yield page

    def _ask_for_less(self, asked: Asked | None) -> None:
        """The reply was too large, and the connection is given up with what is left of it. asked: None where it grew
        before all was asked."""
        self._server.close()
        self._sizer.too_large(None if asked is None else sum(asked.counts))

    # -- asking ------------------------------------------------------------------------------------------------

    def _ask(self) -> Asked:
        """Send the request for the next page: of the first readings that are not at their end, as many as fit.

        A page has one piece of a stream: what follows it there is only asked for when its end is known. And it is of
        one server: in a cluster readings of other nodes wait for pages of their own.
        """
        asked = Asked([], [])
        room = self._sizer.size
        streams = set()
        elsewhere = set()
        there: Connection | None = None
        for reading in self._readings:
            if room <= 0 or reading.run.stream in streams or (reading.by_id and asked.readings):
                break
            if asked.readings and is_returned(reading.run.stream) != is_returned(asked.readings[0].run.stream):
                break  # their entries have another shape
            has_it = self._server.of(reading.run.stream)
            if reading.run.stream in elsewhere or has_it is not (there := there or has_it):
                elsewhere.add(reading.run.stream)
                continue
            count = reading.wanted(room)
            if reading.by_id:
                return self._ask_by_id(reading, count)
            asked.readings.append(reading)
            asked.counts.append(count)
            streams.add(reading.run.stream)
            room -= count
        pairs = list(zip(asked.readings, asked.counts, strict=True))
        ranges = [
            pack("XRANGE", reading.run.stream, b"(" + bytes(reading.after), bytes(reading.run.last), "COUNT", count)
            for reading, count in pairs
        ]
        pending = [self._pending_command(reading, count) for reading, count in pairs if self._asks_pending(reading)]
        most = asked.max_reply_bytes(self._limits.max_reply_bytes)
        self._there = there or self._there
        if there is not None and pending:
            there.request_apart([b"".join(ranges), b"".join(pending)], most)
        elif there is not None:
            there.request(*ranges, most=most)
        return asked

    def _ask_by_id(self, reading: Reading, count: int) -> Asked:
        chosen = self._choose(reading, count)
        head = pack("XRANGE", reading.run.stream, "-", "-").removesuffix(2 * b"$1\r\n-\r\n")
        asked = Asked([reading], [len(chosen.arguments)], chosen)
        requests = [head + entry + entry for entry in chosen.arguments.to_pylist()]
        self._there = self._server.of(reading.run.stream)
        self._there.request(*requests, most=asked.max_reply_bytes(self._limits.max_reply_bytes))
        return asked

    def _choose(self, reading: Reading, count: int) -> Chosen:
        """The next ids of ours: those that the run names, else those that are pending (one more round trip)."""
        if reading.ids is not None:
            ids = reading.ids.slice(reading.taken, count)
            if reading.taken + count >= len(reading.ids):
                return Chosen(ids, None, reading.run.last)
            return Chosen(ids, None, StreamId.parse(texts_of(ids[-1].as_py())[0].as_py()))
        there = self._server.of(reading.run.stream)
        there.request(self._pending_command(reading, count))
        page = self._decode_pending([reading], there.receive())[0]
        up_to = page.last if page.last is not None and page.count == count else reading.run.last
        return Chosen(arguments_of(page.ids), pa.array(page.deliveries), up_to)

    def _asks_pending(self, reading: Reading) -> bool:
        return self._deliveries or not reading.run.owned

    def _pending_command(self, reading: Reading, count: int) -> bytes:
        entries = reading.run
        return pack_pending(
            self._member, PendingRange(entries.stream, entries.last, reading.after, entries.consumer), count
        )

    # -- understanding the reply -------------------------------------------------------------------------------

    def _by_id(self, asked: Asked, reply: memoryview) -> Page:
        """Entries that were asked for one by one."""
        reading, chosen = asked.readings[0], asked.chosen
        assert chosen is not None
        entries, deliveries = decode_entries(b"*0\r\n"), chosen.deliveries
        if asked.counts[0]:
            entries, counts = self._decode(asked, reply, asked.counts[0])
            if deliveries is not None:
                deliveries = deliveries.filter(pa.array(np.array(counts, np.bool_)))
        if self._deliveries and deliveries is None:
            deliveries = pa.nulls(entries.count, pa.int64())
        reading.taken += asked.counts[0]
        reading.advance(chosen.up_to, entries.count)
        return Page(entries, entries.count, reading.run.stream, deliveries, asked.ended(), entries.count)

    def _in_range(self, there: Connection, asked: Asked, reply: memoryview) -> Page:
        """Entries that were asked for by ranges, held against the pending ones where these were asked for, too."""
        with_pending = any(map(self._asks_pending, asked.readings))
        ranges, pending = there.apart(reply) if with_pending else (reply, reply[:0])
        entries, counts = self._decode(asked, ranges, len(asked.readings))
        rows = entries.rows_of(counts)
        streams = asked.streams(rows)
        if not with_pending:
            for reading, to, count in zip(asked.readings, asked.reached(entries, rows), rows.tolist(), strict=True):
                reading.advance(to, count)
            return Page(entries, entries.count, streams, None, asked.ended(), entries.count)
        held = [index for index, reading in enumerate(asked.readings) if self._asks_pending(reading)]
        pages = self._decode_pending([asked.readings[index] for index in held], pending)
        matched = match(asked, entries, rows, dict(zip(held, pages, strict=True)))
        received, deliveries = entries.count, matched.deliveries if self._deliveries else None
        if not matched.ours.all():
            picked = np.flatnonzero(matched.ours)
            entries = FilteredPage(entries, picked)
            streams = streams if isinstance(streams, str) else streams.take(pa.array(picked))
            deliveries = None if deliveries is None else deliveries.take(pa.array(picked))
        return Page(entries, entries.count, streams, deliveries, asked.ended(), received)

    def _decode(self, asked: Asked, reply: memoryview, count: int) -> tuple[EntryPage, list[int]]:
        try:
            return decode_replies(reply, count)
        except ServerReplyError as error:
            names = ", ".join(repr(reading.run.stream) for reading in asked.readings[:3])
            more = ", …" if len(asked.readings) > 3 else ""
            where = f"XRANGE of {names}{more} at {self._server.address}"
            raise while_reading(where, error, asked.readings[0].run.stream) from None

    def _decode_pending(self, readings: list[Reading], replies: memoryview) -> list[PendingPage]:
        """A page for each reading. Raises the named error of the first reply that is one."""
        pages = []
        for page, reading in zip(decode_pending(replies, len(readings)), readings, strict=True):
            if isinstance(page, ReplyError):
                error = self._server.get().error_of(page, ("XPENDING", reading.run.stream, self._member.group))
                if not (self._may_vanish and isinstance(error, GroupMissingError)):
                    raise error
                pages.append(NOTHING_PENDING)
            else:
                pages.append(page)
        return pages
