"""Position of a task in one range, and a request for the next page."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_streams.model.ids import StreamId
from spark_streams.source.entry_range import EntryRange
from spark_streams.wire.entries.entry_page import EntryPage
from spark_streams.wire.entries.lines import Index
from spark_streams.wire.entries.pending_page import arguments_of

MIN_JUDGED = 32  # entries that are needed to decide whether a range is sparse


@dataclass
class RangeCursor:
    """Position in one range. after: all entries up to here are read; by_id: entries are read one by one; ids: range.ids
    as packed arguments; ids_read: how many of these are read; ours: our entries so far; ended: there are no more."""

    range: EntryRange
    after: StreamId
    by_id: bool
    ids: pa.Array | None = None
    ids_read: int = 0
    ours: int = 0
    ended: bool = False

    @classmethod
    def at_begin(cls, entries: EntryRange) -> RangeCursor:
        """Return a cursor at the begin of a range."""
        ids = arguments_of(entries.ids) if entries.ids else None
        return cls(entries, entries.after, by_id=ids is not None, ids=ids)

    def page_size(self, limit: int) -> int:
        """Return how many entries to request, at most `limit`."""
        remaining = self.range.count - self.ours
        if remaining <= 0:  # the count was an estimate
            return limit
        return min(limit, remaining if self.range.owned else max(2 * remaining, 2 * MIN_JUDGED))

    def advance(self, to: StreamId, ours: int) -> None:
        """Move the cursor to `to`, with this number of further entries of ours."""
        self.after = to
        self.ours += ours
        self.ended = not to < self.range.last


@dataclass(frozen=True)
class IdSelection:
    """Entries that are read by ID. arguments: their packed IDs; deliveries: of each entry, None if unknown; up_to: all
    our entries up to this ID are selected."""

    arguments: pa.Array
    deliveries: pa.Array | None
    up_to: StreamId


@dataclass(frozen=True)
class PageRequest:
    """Request for one page. counts: number of entries per cursor; selection: entries by ID, then of one cursor."""

    cursors: list[RangeCursor]
    counts: list[int]
    selection: IdSelection | None = None

    def max_reply_bytes(self, limit: int) -> int | None:
        """Return the maximum size of the reply: `limit`, or None (unlimited) for a single entry."""
        return None if sum(self.counts) == 1 else limit

    def ended_ranges(self) -> list[tuple[EntryRange, int]]:
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
