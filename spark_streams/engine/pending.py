"""The pending entries of a consumer group, as runs.

Reading in thousands delivers unbroken ranges, so what is pending is kept as ranges too:

    firsts   id          id               id     id            sorted: bisect, never scan
    runs    [ 1,000    ][ 1,000         ][ 1   ][ 340     ]
             alice       bob              alice  bob           consumer
             12:00:01    12:00:02         11:07  12:00:03      last delivery
             1           1                3      1             deliveries

A run stands for *all slots of the stream* from its first to its last id (dead slots too, if they died after delivery),
so it takes the same memory for one entry and for a million. Delivering or acknowledging a whole range adds or drops
runs; acknowledging a part opens just that run. Runs never overlap.

When a node of the stream goes, the runs over it write down its ids (`ids`) and no longer need the stream. A run of one
entry never needs to: its first id says it all.

Each run stands in two indexes: its group's and its consumer's.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING

from spark_streams.engine import entryid

if TYPE_CHECKING:
    from spark_streams.engine.group import Consumer
    from spark_streams.engine.stream import Stream


# Acknowledged ranges in one run from which on it is rewritten rather than opened for each.
_SCATTERED = 8


class Run:
    """Pending entries first … last of one consumer, delivered at the same time, equally often."""

    __slots__ = ("consumer", "count", "deliveries", "first", "ids", "last", "time")

    def __init__(self, first: int, last: int, count: int, consumer: Consumer, time: int, deliveries: int) -> None:
        self.first = first
        self.last = last
        self.count = count
        self.consumer = consumer
        self.time = time  # of the last delivery, Unix milliseconds
        self.deliveries = deliveries
        self.ids: list[int] | None = None  # written down, where the stream can no longer tell them

    def id_list(self, stream: Stream, start: int = 0, limit: int | None = None) -> list[int]:
        """Its ids from `start` on, at most `limit`."""
        if self.count == 1:
            return [self.first] if start <= self.first and limit != 0 else []
        if self.ids is not None:
            low = bisect_left(self.ids, start)
            return self.ids[low:] if limit is None else self.ids[low : low + limit]
        found: list[int] = []
        for node, low, high in stream.slot_ranges(max(start, self.first), self.last):
            found += node.id_list(low, high if limit is None else min(high, low + limit - len(found)))
            if limit is not None and len(found) >= limit:
                break
        return found

    def id_texts(self, stream: Stream, start: int = 0, limit: int | None = None) -> list[bytes]:
        """As `id_list`, in text."""
        if self.count == 1 or self.ids is not None:
            return [entryid.text(entry_id) for entry_id in self.id_list(stream, start, limit)]
        found: list[bytes] = []
        for node, low, high in stream.slot_ranges(max(start, self.first), self.last):
            found += node.id_texts(low, high if limit is None else min(high, low + limit - len(found)))
            if limit is not None and len(found) >= limit:
                break
        return found

    def holds(self, entry_id: int, stream: Stream) -> bool:
        """Whether this very id is one of its entries."""
        if not self.first <= entry_id <= self.last:
            return False
        if entry_id in (self.first, self.last):
            return True
        if self.ids is not None:
            at = bisect_left(self.ids, entry_id)
            return self.ids[at] == entry_id
        return stream.slot_id(entry_id) == entry_id


class RunIndex:
    """Runs in order of their first ids."""

    __slots__ = ("count", "firsts", "runs")

    def __init__(self) -> None:
        self.firsts: list[int] = []
        self.runs: list[Run] = []
        self.count = 0  # entries, not runs

    def add(self, run: Run) -> None:
        """Put a run in; it overlaps none of those present."""
        self.count += run.count
        if not self.firsts or run.first > self.firsts[-1]:
            self.firsts.append(run.first)
            self.runs.append(run)
            return
        at = bisect_left(self.firsts, run.first)
        self.firsts.insert(at, run.first)
        self.runs.insert(at, run)

    def remove(self, run: Run) -> None:
        """Take a run out."""
        at = bisect_left(self.firsts, run.first)
        del self.firsts[at], self.runs[at]
        self.count -= run.count

    def at(self, entry_id: int) -> int:
        """The index of the first run whose last id is not below this one."""
        at = bisect_right(self.firsts, entry_id) - 1
        if at < 0 or self.runs[at].last < entry_id:
            at += 1
        return at

    def since(self, entry_id: int) -> Iterator[Run]:
        """The runs from `at(entry_id)` on; the index must not change meanwhile."""
        return map(self.runs.__getitem__, range(self.at(entry_id), len(self.runs)))

    def around(self, entry_id: int) -> Run | None:
        """The run whose range spans this id, whether or not it holds it."""
        at = bisect_right(self.firsts, entry_id) - 1
        if at < 0 or self.runs[at].last < entry_id:
            return None
        return self.runs[at]


class PendingList:
    """All pending entries of one group. The stream passed in is always the group's own."""

    __slots__ = ("index",)

    def __init__(self) -> None:
        self.index = RunIndex()

    def __len__(self) -> int:
        return self.index.count

    def add(self, run: Run) -> None:
        """Put a run of new pending entries in; nothing in its range may be pending."""
        self.index.add(run)
        run.consumer.pending.add(run)

    def remove(self, run: Run) -> None:
        """Take a run out of both indexes."""
        self.index.remove(run)
        run.consumer.pending.remove(run)

    def get(self, entry_id: int, stream: Stream) -> Run | None:
        """The run that holds this id."""
        run = self.index.around(entry_id)
        return run if run is not None and run.holds(entry_id, stream) else None

    def open(self, entry_id: int, stream: Stream) -> None:
        """Make sure that no run holds both an id below this one and an id not below it."""
        run = self.index.around(entry_id)
        if run is None or run.first == entry_id:
            return
        self.remove(run)
        if run.ids is not None:
            cut = bisect_left(run.ids, entry_id)
            left = Run(run.first, run.ids[cut - 1], cut, run.consumer, run.time, run.deliveries)
            right = Run(run.ids[cut], run.last, run.count - cut, run.consumer, run.time, run.deliveries)
            left.ids, right.ids = run.ids[:cut], run.ids[cut:]
        else:
            first = stream.slot_id(entry_id)
            assert first is not None  # the run's last id is a slot not below entry_id
            count = stream.slot(entry_id) - stream.slot(run.first)
            below = stream.slot_id_below(entry_id)
            left = Run(run.first, below, count, run.consumer, run.time, run.deliveries)
            right = Run(first, run.last, run.count - count, run.consumer, run.time, run.deliveries)
        self.add(left)
        self.add(right)

    def between(self, first: int, last: int, stream: Stream) -> list[Run]:
        """The runs of exactly the pending entries with first ≤ id ≤ last."""
        self.open(first, stream)
        self.open(last + 1, stream)
        index = self.index
        return index.runs[index.at(first) : bisect_right(index.firsts, last)]

    def discard(self, first: int, last: int, stream: Stream) -> int:
        """Drop all that is pending with first ≤ id ≤ last; how many entries that was."""
        runs = self.between(first, last, stream)
        for run in runs:
            self.remove(run)
        return sum(run.count for run in runs)

    def discard_all(self, ranges: list[tuple[int, int]], stream: Stream) -> int:
        """`discard` for each range; a range of one id may be one that is not pending.

        Many ranges in one run (somebody acknowledged every other entry) do not open it again and again: what is left of
        it becomes one run with its ids written down.
        """
        dropped = 0
        ranges.sort()
        at = 0
        while at < len(ranges):
            first, last = ranges[at]
            run = self.index.around(first)
            end = at + 1
            if run is not None and run.count > _SCATTERED:
                end = bisect_right(ranges, (run.last, run.last), at)
            if run is not None and end - at > _SCATTERED:
                dropped += self._thin(run, ranges[at:end], stream)
                at = end
                continue
            if first != last or (run is not None and run.holds(first, stream)):
                dropped += self.discard(first, last, stream)
            at += 1
        return dropped

    def _thin(self, run: Run, ranges: list[tuple[int, int]], stream: Stream) -> int:
        """Drop sorted ranges of ids that lie within one run."""
        ids = run.id_list(stream)
        kept: list[int] = []
        at = 0
        for first, last in ranges:
            low = bisect_left(ids, first, at)
            kept += ids[at:low]
            at = bisect_right(ids, last, low)
        kept += ids[at:]
        self.remove(run)
        if kept:
            rest = Run(kept[0], kept[-1], len(kept), run.consumer, run.time, run.deliveries)
            rest.ids = kept
            self.add(rest)
        return run.count - len(kept)

    def take(self, entry_id: int, stream: Stream) -> Run | None:
        """Take one entry out and return it as a run of its own; None when it is not pending."""
        if self.get(entry_id, stream) is None:
            return None
        (run,) = self.between(entry_id, entry_id, stream)
        self.remove(run)
        return run

    def put(self, entry_id: int, consumer: Consumer, time: int, deliveries: int, stream: Stream) -> None:
        """Make one entry pending that is not; it joins its left neighbour where the two are alike."""
        # A run with its ids written down may span an id that is not in it.
        self.open(entry_id, stream)
        at = bisect_left(self.index.firsts, entry_id) - 1
        if at >= 0:
            left = self.index.runs[at]
            alike = left.consumer is consumer and left.time == time and left.deliveries == deliveries
            if alike and left.ids is None and _are_neighbours(left.last, entry_id, stream):
                left.last = entry_id
                left.count += 1
                self.index.count += 1
                consumer.pending.count += 1
                return
        self.add(Run(entry_id, entry_id, 1, consumer, time, deliveries))

    def keep_ids(self, first: int, last: int, stream: Stream) -> None:
        """Write down the ids with first ≤ id ≤ last: the stream is about to forget them."""
        index = self.index
        at = index.at(first)
        if at == len(index.firsts) or index.firsts[at] > last:
            return
        for run in self.between(first, last, stream):
            if run.count > 1 and run.ids is None:
                run.ids = run.id_list(stream)


def _are_neighbours(first: int, second: int, stream: Stream) -> bool:
    """Whether both ids have slots in the stream, one right after the other."""
    return stream.slot_id(first) == first and stream.slot_id(first + 1) == second
