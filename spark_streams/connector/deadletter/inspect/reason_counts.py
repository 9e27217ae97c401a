"""Numbers of dead letters of each reason in a stream, updated incrementally. Pure.

The stream is divided into sectiones. For each section, the number of its entries when it was read is known, and the
number of dead letters by reason:

    present first entry         read up to here                  present last entry
           |--- section ---|--- section ---|--- section ---|.......... new ..|

IDs only grow, so new entries are always at the end. Entries are removed from the front or from the middle. The stream's
length shows whether entries were removed: then the sectiones have more entries than the stream. Sectiones that end
before the stream's first entry are dropped. Others are read again, from the front, until the sum is right. So only new
entries are read, and as few others as possible.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field

from spark_streams.base.ids import MIN_ID, StreamId
from spark_streams.connector.deadletter.kind_counts import KindCounts

SECTION = 2_000  # entries; more if there would be too many sectiones
SECTIONES = 500
REASONS = 50  # that are counted by name; all others are counted together


@dataclass
class _CountedSection:
    """Entries above the previous section up to `last`, at the time when they were read."""

    last: StreamId
    entries: int
    counts: KindCounts


@dataclass
class _Reread:
    """A section that is being read again, so far up to `upto`."""

    upto: StreamId
    entries: int = 0
    counts: KindCounts = field(default_factory=lambda: KindCounts(max_kinds=REASONS))


class ReasonCounts:
    """Counts of one stream. `update` takes the stream's state; `next_range` is the range to read then; `read` takes it
    page by page, until there is no range left. If the caller stops before, it can continue after the next update."""

    def __init__(self, section: int = SECTION, sectiones: int = SECTIONES) -> None:
        self._size, self._max_sectiones = section, sectiones
        self._sectiones: list[_CountedSection] = []
        self._length = 0
        self._first = self._last = MIN_ID
        self._added: int | None = None
        self._index = 0  # of the section that is read again next
        self._remaining = 0  # sectiones that may be read again before the next update
        self._reread: _Reread | None = None

    def update(self, length: int, first: StreamId, last: StreamId, added: int | None) -> None:
        """Take the stream's state. length: number of entries; first: ID of the oldest entry; last: the highest ID ever;
        added: number of entries ever added, None if the server does not count them."""
        fewer = added is not None and self._added is not None and added < self._added
        if last < self._last or fewer:  # another stream of that name, or an older state of this one
            self._sectiones.clear()
        removed = (
            len(self._sectiones) if not length else bisect.bisect_left(self._sectiones, first, key=lambda s: s.last)
        )
        del self._sectiones[:removed]
        if first != self._first or not self._sectiones:
            self._index, self._reread = 0, None  # entries of the first section were removed
        self._length, self._first, self._last, self._added = length, first, last, added
        self._remaining = len(self._sectiones)

    @property
    def next_range(self) -> tuple[StreamId, StreamId] | None:
        """(first, last) ID of the range to read next, from its beginning; None if the counts are complete."""
        if self._has_new:
            return self._covered.next(), self._last
        if self._entries <= self._length or not self._remaining:
            return None
        section = self._sectiones[self._index]
        begin = MIN_ID if not self._index else self._sectiones[self._index - 1].last.next()
        return (begin if self._reread is None else self._reread.upto.next()), section.last

    def read(self, upto: StreamId, entries: int, counts: KindCounts) -> None:
        """Take a page of `next_range`: the number of its entries up to this ID, and its dead letters by (reason,)."""
        if self._has_new:
            self._append(upto, entries, counts)
            return
        section = self._sectiones[self._index]
        reread = self._reread or _Reread(upto)
        reread.upto, reread.entries = upto, reread.entries + entries
        reread.counts.merge(counts)
        self._reread = reread
        if upto >= section.last:
            section.entries, section.counts, self._reread = reread.entries, reread.counts, None
            self._index, self._remaining = (self._index + 1) % len(self._sectiones), self._remaining - 1

    @property
    def uncounted(self) -> int:
        """Entries that have not been read yet, or were removed meanwhile."""
        return max(0, self._length - self._entries)

    @property
    def counts(self) -> KindCounts:
        """The counts of all sectiones, by (reason,)."""
        counts = KindCounts(max_kinds=REASONS)
        for section in self._sectiones:
            counts.merge(section.counts)
        return counts

    @property
    def _covered(self) -> StreamId:
        return self._sectiones[-1].last if self._sectiones else MIN_ID

    @property
    def _has_new(self) -> bool:
        return self._length > 0 and self._covered < self._last

    @property
    def _entries(self) -> int:
        return sum(section.entries for section in self._sectiones)

    def _append(self, upto: StreamId, entries: int, counts: KindCounts) -> None:
        end = self._sectiones[-1] if self._sectiones else None
        is_read_again = self._reread is not None and self._index == len(self._sectiones) - 1
        if end is not None and end.entries + entries <= self._size and not is_read_again:
            end.last, end.entries = upto, end.entries + entries
            end.counts.merge(counts)
            return
        self._sectiones.append(_CountedSection(upto, entries, counts))
        if len(self._sectiones) > self._max_sectiones:
            self._join_pairs()

    def _join_pairs(self) -> None:
        """Join sectiones in pairs; further sectiones are twice as long."""
        self._size *= 2
        for first, second in zip(self._sectiones[0::2], self._sectiones[1::2], strict=False):
            second.entries += first.entries
            first.counts.merge(second.counts)
            second.counts = first.counts
        last = self._sectiones[-1:] if len(self._sectiones) % 2 else []
        self._sectiones = self._sectiones[1::2] + last
        self._index, self._reread = 0, None
