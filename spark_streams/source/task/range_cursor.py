"""A run while it is read, and what a request asks for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_streams.model.ids import StreamId
from spark_streams.source.entry_range import EntryRange
from spark_streams.wire.entries.entry_page import EntryPage
from spark_streams.wire.entries.lines import Index
from spark_streams.wire.entries.pending_page import arguments_of

LEAST_JUDGED = 32  # entries that it takes to tell whether a range is sparse


@dataclass
class Reading:
    """after: all up to here has been read; by_id: read entry by entry; ids: run.ids as packed arguments, and taken:
    how many of these are read; ours: entries of ours so far; ended: there are no more."""

    run: EntryRange
    after: StreamId
    by_id: bool
    ids: pa.Array | None = None
    taken: int = 0
    ours: int = 0
    ended: bool = False

    @classmethod
    def of(cls, entries: EntryRange) -> Reading:
        """At the beginning of a run."""
        ids = arguments_of(entries.ids) if entries.ids else None
        return cls(entries, entries.after, by_id=ids is not None, ids=ids)

    def wanted(self, room: int) -> int:
        """How many entries to ask for where there is room for so many."""
        left = self.run.count - self.ours
        if left <= 0:  # the count was an estimate
            return room
        return min(room, left if self.run.owned else max(2 * left, 2 * LEAST_JUDGED))

    def advance(self, to: StreamId, ours: int) -> None:
        """All up to `to` is read, and so many more entries are ours."""
        self.after = to
        self.ours += ours
        self.ended = not to < self.run.last


@dataclass(frozen=True)
class Chosen:
    """Which entries a reading by id asks for. arguments: their packed ids; deliveries: of each, None where not known;
    up_to: all of ours to here are among them."""

    arguments: pa.Array
    deliveries: pa.Array | None
    up_to: StreamId


@dataclass(frozen=True)
class Asked:
    """What a request asks for. counts: how many entries of each reading; chosen: by id, then of one reading."""

    readings: list[Reading]
    counts: list[int]
    chosen: Chosen | None = None

    def max_reply_bytes(self, several: int) -> int | None:
        """How large the reply may be: an entry alone as large as it is, more of them `several`."""
        return None if sum(self.counts) == 1 else several

    def ended(self) -> list[tuple[EntryRange, int]]:
        """The ranges that are at their end, and how many entries of each were found."""
        return [(reading.run, reading.ours) for reading in self.readings if reading.ended]

    def streams(self, rows: Index) -> str | pa.Array:
        """The stream of the reply's rows, or of each of them. rows: how many each reading has."""
        if len(self.readings) == 1:
            return self.readings[0].run.stream
        names = pa.array([reading.run.stream for reading in self.readings], pa.string())
        return names.take(pa.array(np.repeat(np.arange(len(rows)), rows)))

    def reached(self, entries: EntryPage, rows: Index) -> list[StreamId]:
        """Per reading up to where the reply has all entries: the last one's id, or the run's end if it was not full."""
        if len(rows) == 1:
            last_id = entries.last_id
            return [last_id if last_id is not None and rows[0] == self.counts[0] else self.readings[0].run.last]
        last = entries.ids().take(pa.array(np.maximum(np.cumsum(rows) - 1, 0))).to_pylist() if entries.count else []
        ends = []
        for index, reading in enumerate(self.readings):
            end = reading.run.last
            full = rows[index] == self.counts[index] and last[index] != bytes(end)
            ends.append(StreamId.parse(last[index]) if full else end)
        return ends
