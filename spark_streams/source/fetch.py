"""The entries of some runs, a page at a time. Many small runs share a page, a large one takes many.

How a run is read depends on what is known of it:
- owned: XRANGE, and every entry is ours;
- shared: XRANGE beside XPENDING of the same range, and the ids of the one choose from the other. A pending list costs
  the server less to tell than entries, and reading counts no delivery, as XREADGROUP would (FACTS R5, R8);
- shared, and few of the entries there are ours: XPENDING first, then XRANGE for each id alone.
Where delivery counts are wanted, owned runs are asked for their pending entries, too.

A page is kept near _PAGE_BYTES by what the last one's entries measured. Entries may suddenly be large: a reply that
grows beyond _MOST_BYTES is given up together with its connection, so that neither side holds it, and asked for again in
small pieces. The next page is asked for before the last one is handed out: the server works while its reader does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_streams.errors import RStreamError, ServerReplyError, ServerUnreachableError
from spark_streams.ids import StreamId
from spark_streams.source.group import Membership
from spark_streams.source.pending import PendingRange, ask_pending
from spark_streams.source.plan import Run
from spark_streams.wire.connection import Connection, ReplyError, ReplyTooLargeError, pack
from spark_streams.wire.decode import EntryPage, decode_entries, decode_replies
from spark_streams.wire.lines import Index, Mask
from spark_streams.wire.pending import PendingPage, arguments_of, decode_pending, texts_of
from spark_streams.wire.picked import PickedPage
from spark_streams.wire.retry import Backoff, is_passing

_FIRST_PAGE = 200  # entries; the size of entries is not known yet
_PAGE_BYTES = 4 << 20
_MOST_BYTES = 32 << 20
_LARGEST_PAGE = 8_000  # entries
_GROWTH = 10  # a page is at most so many times the one before
_CUT = 100  # and this many times smaller than one that was too large
_SPARSE = 4  # a shared range where fewer than one in so many entries are ours is read id by id
_JUDGED = 32  # entries that such a judgement takes


@dataclass(frozen=True)
class Page:
    """The first `rows` rows of `entries`; streams: of all rows, or of each; deliveries: int64 per row, where wanted.
    ended: runs that this page is the last of, and how many entries were found of each; received: entries that came,
    ours or not."""

    entries: EntryPage
    rows: int
    streams: str | pa.Array
    deliveries: pa.Array | None
    ended: list[tuple[Run, int]]
    received: int


@dataclass
class _Reading:
    """A run while it is read. after: all up to here has been read; found: entries of ours there; taken: of run.ids."""

    run: Run
    after: StreamId
    by_id: bool
    ids: pa.Array | None = None
    taken: int = 0
    found: int = 0
    ended: bool = False

    @classmethod
    def of(cls, run: Run) -> _Reading:
        ids = arguments_of(run.ids) if run.ids else None
        return cls(run, run.after, by_id=ids is not None, ids=ids)

    def wanted(self, room: int) -> int:
        """How many entries to ask for where there is room for so many."""
        left = self.run.count - self.found
        if left <= 0:  # the count was an estimate
            return room
        return min(room, left if self.run.owned else max(2 * left, 2 * _JUDGED))

    def advance(self, to: StreamId, found: int) -> None:
        self.after = to
        self.found += found
        self.ended = not to < self.run.last


@dataclass(frozen=True)
class _Chosen:
    """Which entries a reading by id asks for. arguments: their packed ids; deliveries: of each, None where not known;
    up_to: all of ours to here are among them."""

    arguments: pa.Array
    deliveries: pa.Array | None
    up_to: StreamId


@dataclass(frozen=True)
class _Asked:
    """What a request asks for. counts: how many entries of each reading; chosen: by id, then of one reading."""

    readings: list[_Reading]
    counts: list[int]
    chosen: _Chosen | None = None


class Fetch:
    """Reads `runs` through `server`. As a context manager it closes a connection that it had to make itself."""

    def __init__(self, server: Connection, member: Membership, runs: Sequence[Run], deliveries: bool) -> None:
        self._given = self._server = server
        self._member = member
        self._readings = [_Reading.of(run) for run in runs]
        self._deliveries = deliveries
        self._size = _FIRST_PAGE

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not self._given:
            self._server.close()

    def pages(self) -> Iterator[Page]:
        """All entries. A connection that breaks is made again, and what was not yet handed out is asked for again.

        Raises GroupMissingError, ServerError, RetriesExhaustedError.
        """
        backoff = Backoff()
        asked: _Asked | None = None
        while True:
            try:
                asked = asked or self._ask()
                if not asked.readings:
                    return
                reply = self._server.receive(None if sum(asked.counts) == 1 else _MOST_BYTES)
                page = self._by_id(asked, reply) if asked.chosen is not None else self._in_range(asked, reply)
            except ReplyTooLargeError:
                assert asked is not None
                self._size = max(1, sum(asked.counts) // _CUT)
                asked = None
                self._connect_again(backoff)
                continue
            except RStreamError as error:
                if not is_passing(error):
                    raise
                asked = None
                backoff.wait(f"reading at {self._server.address}", error.message)
                self._connect_again(backoff)
                continue
            backoff.succeeded()
            self._size = _next_size(self._size, page.received, len(reply))
            self._readings = [reading for reading in self._readings if not reading.ended]
            try:
                asked = self._ask()
            except ServerUnreachableError:
                asked = None  # it is asked again when this page has been used
            yield page

    def _connect_again(self, backoff: Backoff) -> None:
        self._server.close()
        while True:
            try:
                self._server = Connection(self._server.address)
                return
            except ServerUnreachableError as error:
                backoff.wait(f"connecting to {self._server.address}", error.message)

    # -- asking ------------------------------------------------------------------------------------------------

    def _ask(self) -> _Asked:
        """Send the request for the next page: of the first readings that are not at their end, as many as fit.

        A page has one piece of a stream: what follows it there is only asked for when its end is known.
        """
        asked = _Asked([], [])
        room = self._size
        streams = set()
        for reading in self._readings:
            if room <= 0 or reading.run.stream in streams or (reading.by_id and asked.readings):
                break
            count = reading.wanted(room)
            if reading.by_id:
                return self._ask_by_id(reading, count)
            asked.readings.append(reading)
            asked.counts.append(count)
            streams.add(reading.run.stream)
            room -= count
        pairs = list(zip(asked.readings, asked.counts, strict=True))
        ranges = [
            pack("XRANGE", one.run.stream, b"(" + bytes(one.after), bytes(one.run.last), "COUNT", count)
            for one, count in pairs
        ]
        pending = [self._pending_command(one, count) for one, count in pairs if self._asks_pending(one)]
        if pending:
            self._server.request_apart([b"".join(ranges), b"".join(pending)])
        elif ranges:
            self._server.request(*ranges)
        return asked

    def _ask_by_id(self, reading: _Reading, count: int) -> _Asked:
        chosen = self._choose(reading, count)
        head = pack("XRANGE", reading.run.stream, "-", "-").removesuffix(2 * b"$1\r\n-\r\n")
        self._server.request(*[head + one + one for one in chosen.arguments.to_pylist()])
        return _Asked([reading], [len(chosen.arguments)], chosen)

    def _choose(self, reading: _Reading, count: int) -> _Chosen:
        """The next ids of ours: those that the run names, else those that are pending (one more round trip)."""
        if reading.ids is not None:
            ids = reading.ids.slice(reading.taken, count)
            if reading.taken + count >= len(reading.ids):
                return _Chosen(ids, None, reading.run.last)
            return _Chosen(ids, None, StreamId.parse(texts_of(ids[-1].as_py())[0].as_py()))
        self._server.request(self._pending_command(reading, count))
        page = self._decode_pending([reading], self._server.receive())[0]
        up_to = page.last if page.last is not None and page.count == count else reading.run.last
        return _Chosen(arguments_of(page.ids), pa.array(page.deliveries), up_to)

    def _asks_pending(self, reading: _Reading) -> bool:
        return self._deliveries or not reading.run.owned

    def _pending_command(self, reading: _Reading, count: int) -> bytes:
        run = reading.run
        return ask_pending(self._member, PendingRange(run.stream, run.last, reading.after, run.consumer), count)

    # -- understanding the reply -------------------------------------------------------------------------------

    def _by_id(self, asked: _Asked, reply: memoryview) -> Page:
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
        return Page(entries, entries.count, reading.run.stream, deliveries, _ended(asked), entries.count)

    def _in_range(self, asked: _Asked, reply: memoryview) -> Page:
        """Entries that were asked for by ranges, held against the pending ones where these were asked for, too."""
        with_pending = any(map(self._asks_pending, asked.readings))
        ranges, pending = self._server.apart(reply) if with_pending else (reply, reply[:0])
        count = len(asked.readings)
        entries, counts = self._decode(asked, ranges, count)
        rows = entries.rows_of(counts)
        reached = _reached(asked, entries, rows)
        streams = asked.readings[0].run.stream if count == 1 else _per_row(asked, rows)
        if not with_pending:
            for reading, to, found in zip(asked.readings, reached, rows.tolist(), strict=True):
                reading.advance(to, found)
            return Page(entries, entries.count, streams, None, _ended(asked), entries.count)
        return self._matched(asked, entries, rows, reached, streams, pending)

    def _matched(
        self,
        asked: _Asked,
        entries: EntryPage,
        rows: Index,
        reached: list[StreamId],
        streams: str | pa.Array,
        replies: memoryview,
    ) -> Page:
        """The rows that are ours, with their delivery counts."""
        held = [at for at, reading in enumerate(asked.readings) if self._asks_pending(reading)]
        pages = dict(zip(held, self._decode_pending([asked.readings[at] for at in held], replies), strict=True))
        where = _positions(entries, rows, pages)
        keep = np.ones(entries.count, np.bool_)
        stop = 0
        for at, (reading, count) in enumerate(zip(asked.readings, rows.tolist(), strict=True)):
            start, stop = stop, stop + count
            page = pages.get(at)
            if page is not None:
                # Beyond the end of either reply it is not known what is ours.
                if page.last is not None and page.count == asked.counts[at]:
                    reached[at] = min(reached[at], page.last)
                if reading.run.owned:
                    keep[start:stop] = _up_to(entries.ids().slice(start, count), reached[at])
                else:
                    keep[start:stop] = where.slice(start, count).is_valid().to_numpy(zero_copy_only=False)
                    found = int(keep[start:stop].sum())
                    reading.by_id = count >= _JUDGED and found * _SPARSE < count
            reading.advance(reached[at], int(keep[start:stop].sum()))
        deliveries = None
        if self._deliveries:
            counted = np.concatenate([np.empty(0, np.int64), *[page.deliveries for page in pages.values()]])
            deliveries = pa.array(counted).take(where)
        received = entries.count
        if received and not keep.all():
            picked = np.flatnonzero(keep)
            entries = PickedPage(entries, picked)
            streams = streams if isinstance(streams, str) else streams.take(pa.array(picked))
            deliveries = None if deliveries is None else deliveries.take(pa.array(picked))
        return Page(entries, entries.count, streams, deliveries, _ended(asked), received)

    def _decode(self, asked: _Asked, reply: memoryview, count: int) -> tuple[EntryPage, list[int]]:
        try:
            return decode_replies(reply, count)
        except ServerReplyError as error:
            names = ", ".join(repr(reading.run.stream) for reading in asked.readings[:3])
            more = ", …" if len(asked.readings) > 3 else ""
            where = f"XRANGE of {names}{more} at {self._server.address}"
            raise ServerReplyError(f"{where}: {error.message}") from None

    def _decode_pending(self, readings: list[_Reading], replies: memoryview) -> list[PendingPage]:
        """A page for each reading. Raises the named error of the first reply that is one."""
        pages = []
        for page, reading in zip(decode_pending(replies, len(readings)), readings, strict=True):
            if isinstance(page, ReplyError):
                raise self._server.error_of(page, ("XPENDING", reading.run.stream, self._member.group))
            pages.append(page)
        return pages


def _next_size(size: int, received: int, reply_bytes: int) -> int:
    """How many entries to ask for next, so that a page stays near _PAGE_BYTES."""
    if received == 0:
        return size
    return max(1, min(_LARGEST_PAGE, _GROWTH * size, _PAGE_BYTES * received // reply_bytes))


def _ended(asked: _Asked) -> list[tuple[Run, int]]:
    return [(reading.run, reading.found) for reading in asked.readings if reading.ended]


def _reached(asked: _Asked, entries: EntryPage, rows: Index) -> list[StreamId]:
    """Per reading up to where its reply has all entries: the last one's id, or the run's end if it was not full."""
    if len(rows) == 1:
        last_id = entries.last_id
        return [last_id if last_id is not None and rows[0] == asked.counts[0] else asked.readings[0].run.last]
    last = entries.ids().take(pa.array(np.maximum(np.cumsum(rows) - 1, 0))).to_pylist() if entries.count else []
    found = []
    for at, reading in enumerate(asked.readings):
        end = reading.run.last
        full = rows[at] == asked.counts[at] and last[at] != bytes(end)
        found.append(StreamId.parse(last[at]) if full else end)
    return found


def _per_row(asked: _Asked, rows: Index) -> pa.Array:
    names = pa.array([reading.run.stream for reading in asked.readings], pa.string())
    return names.take(pa.array(np.repeat(np.arange(len(rows)), rows)))


def _positions(entries: EntryPage, rows: Index, pages: dict[int, PendingPage]) -> pa.Array:
    """Per row its place among the pending entries of all these pages (by reading), null where it is in none."""
    owners = np.repeat(np.arange(len(rows)), rows)
    pending = np.repeat(np.array(list(pages), np.int64), [page.count for page in pages.values()])
    texts = texts_of(b"".join([page.ids for page in pages.values()]))
    return pc.index_in(_keys(owners, entries.ids()), value_set=_keys(pending, texts))


def _keys(owners: Index, ids: pa.Array) -> pa.Array:
    """Ids that are told apart by their reading, too: two streams may have the same."""
    return pc.binary_join_element_wise(pa.array(owners).cast(pa.string()).cast(pa.binary()), ids, b"/")


def _up_to(ids: pa.Array, last: StreamId) -> Mask | bool:
    """Which of these ascending ids are not above `last`."""
    if len(ids) == 0 or StreamId.parse(ids[-1].as_py()) <= last:
        return True
    return np.array([StreamId.parse(one) <= last for one in ids.to_pylist()], np.bool_)
