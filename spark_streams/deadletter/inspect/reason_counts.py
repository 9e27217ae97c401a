"""How many dead letters of each reason stand in a stream, kept true by what one look after the other finds. Pure.

The stream is cut into stretches. Of each it is known how many entries it held when it was read, and how many dead
letters of which reason these were:

    first entry of now          what has been read up to          last entry of now
           |--- stretch ---|--- stretch ---|--- stretch ---|.......... new ..|

Ids only grow, so what comes is new and stands behind; and entries go from the middle or from the front. Whether some
went is known from the stream's length alone: then the stretches hold more entries than the stream does. Stretches that
end before its first entry are gone; others are read again, those in front first, until the sum is right. So what is
read is what came, and where entries went as little as that takes.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field

from spark_streams.deadletter.kind_counts import KindCounts
from spark_streams.model.ids import MIN_ID, StreamId

STRETCH = 2_000  # entries; more where there would be too many of them
STRETCHES = 500
REASONS = 50  # that have a name; the others are one


@dataclass
class _Stretch:
    """The entries above the stretch before it up to `last`, as they were when they were read."""

    last: StreamId
    entries: int
    counts: KindCounts


@dataclass
class _Again:
    """A stretch that is being read again: so far up to `upto`."""

    upto: StreamId
    entries: int = 0
    counts: KindCounts = field(default_factory=lambda: KindCounts(most=REASONS))


class ReasonCounts:
    """Of one stream. A look says how the stream is (`seen`); `wanted` is what to read then, and `read` takes it, page
    by page, until nothing is wanted. Where that is left off, the next look goes on."""

    def __init__(self, stretch: int = STRETCH, stretches: int = STRETCHES) -> None:
        self._size, self._most = stretch, stretches
        self._stretches: list[_Stretch] = []
        self._length = 0
        self._first = self._last = MIN_ID
        self._added: int | None = None
        self._at = 0  # the stretch that is read again next
        self._left = 0  # how many may be, with what this look knows
        self._again: _Again | None = None

    def seen(self, length: int, first: StreamId, last: StreamId, added: int | None) -> None:
        """length: entries of now; first: the oldest one's id; last: the highest ever; added: entries ever added, None
        where the server does not count."""
        fewer = added is not None and self._added is not None and added < self._added
        if last < self._last or fewer:  # another stream of that name, or an older state of this one
            self._stretches.clear()
        gone = len(self._stretches) if not length else bisect.bisect_left(self._stretches, first, key=lambda s: s.last)
        del self._stretches[:gone]
        if first != self._first or not self._stretches:
            self._at, self._again = 0, None  # the stretch in front has been cut
        self._length, self._first, self._last, self._added = length, first, last, added
        self._left = len(self._stretches)

    @property
    def wanted(self) -> tuple[StreamId, StreamId] | None:
        """(first, last) id of the range to be read next, from its beginning; None where all is known."""
        if self._has_new:
            return self._covered.next(), self._last
        if self._entries <= self._length or not self._left:
            return None
        stretch = self._stretches[self._at]
        begin = MIN_ID if not self._at else self._stretches[self._at - 1].last.next()
        return (begin if self._again is None else self._again.upto.next()), stretch.last

    def read(self, upto: StreamId, entries: int, counts: KindCounts) -> None:
        """What stood from where `wanted` begins up to this id, or to its end: a page of it, with its entries and the
        dead letters among them by (reason,)."""
        if self._has_new:
            self._append(upto, entries, counts)
            return
        stretch = self._stretches[self._at]
        again = self._again or _Again(upto)
        again.upto, again.entries = upto, again.entries + entries
        again.counts.merge(counts)
        self._again = again
        if upto >= stretch.last:
            stretch.entries, stretch.counts, self._again = again.entries, again.counts, None
            self._at, self._left = (self._at + 1) % len(self._stretches), self._left - 1

    @property
    def uncounted(self) -> int:
        """Entries that have not been read yet, or went while they were."""
        return max(0, self._length - self._entries)

    @property
    def counts(self) -> KindCounts:
        """All of it, by (reason,)."""
        found = KindCounts(most=REASONS)
        for stretch in self._stretches:
            found.merge(stretch.counts)
        return found

    @property
    def _covered(self) -> StreamId:
        return self._stretches[-1].last if self._stretches else MIN_ID

    @property
    def _has_new(self) -> bool:
        return self._length > 0 and self._covered < self._last

    @property
    def _entries(self) -> int:
        return sum(stretch.entries for stretch in self._stretches)

    def _append(self, upto: StreamId, entries: int, counts: KindCounts) -> None:
        end = self._stretches[-1] if self._stretches else None
        is_read_again = self._again is not None and self._at == len(self._stretches) - 1
        if end is not None and end.entries + entries <= self._size and not is_read_again:
            end.last, end.entries = upto, end.entries + entries
            end.counts.merge(counts)
            return
        self._stretches.append(_Stretch(upto, entries, counts))
        if len(self._stretches) > self._most:
            self._join_pairs()

    def _join_pairs(self) -> None:
        """Half as many, and those to come are twice as long."""
        self._size *= 2
        for one, other in zip(self._stretches[0::2], self._stretches[1::2], strict=False):
            other.entries += one.entries
            one.counts.merge(other.counts)
            other.counts = one.counts
        rest = self._stretches[-1:] if len(self._stretches) % 2 else []
        self._stretches = self._stretches[1::2] + rest
        self._at, self._again = 0, None
