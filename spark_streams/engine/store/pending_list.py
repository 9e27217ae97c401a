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

Each run stands in two indexes: its group's and its consumer's. What XNACK has released belongs to no consumer: such
runs stand with the group's nameless `nobody`, and count as delivered at 0.

XREADGROUP CLAIM wants the entries by age. From its first use on, a group keeps a heap of its runs by (released first,
time of delivery, order of delivery); a run that changes is pushed again, and what no longer holds is skipped when it
comes up.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterator
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, TypeAlias

from spark_streams.engine.store import entryid

if TYPE_CHECKING:
    from spark_streams.engine.store.node import Node
    from spark_streams.engine.store.node_list import NodeList


# Acknowledged ranges in one run from which on it is rewritten rather than opened for each.
_SCATTERED = 8


class Run:
    """Pending entries first … last of one consumer, delivered at the same time, equally often."""

    __slots__ = ("consumer", "count", "deliveries", "first", "ids", "last", "order", "time")

    def __init__(self, first: int, last: int, count: int, consumer: Consumer, time: int, deliveries: int) -> None:
        self.first = first
        self.last = last
        self.count = count
        self.consumer = consumer
        self.time = time  # of the last delivery, Unix milliseconds
        self.deliveries = deliveries
        self.order = 0  # rank among the deliveries of the group; 0 until it is put into a list
        self.ids: list[int] | None = None  # written down, where the stream can no longer tell them

    def part(self, first: int, last: int, count: int) -> Run:
        """A run like this one over some of its entries."""
        made = Run(first, last, count, self.consumer, self.time, self.deliveries)
        made.order = self.order
        return made

    def id_list(self, stream: NodeList, start: int = 0, limit: int | None = None) -> list[int]:
        """Its ids from `start` on, at most `limit`."""
        if self.count == 1:
            return [self.first] if start <= self.first and limit != 0 else []
        if self.ids is not None:
            low = bisect_left(self.ids, start)
            return self.ids[low:] if limit is None else self.ids[low : low + limit]
        ids: list[int] = []
        for node, low, high in self._slots(stream, start, limit):
            ids += node.id_list(low, high)
        return ids

    def id_texts(self, stream: NodeList, start: int = 0, limit: int | None = None) -> list[bytes]:
        """As `id_list`, in text."""
        if self.count == 1 or self.ids is not None:
            return [entryid.text(entry_id) for entry_id in self.id_list(stream, start, limit)]
        texts: list[bytes] = []
        for node, low, high in self._slots(stream, start, limit):
            texts += node.id_texts(low, high)
        return texts

    def _slots(self, stream: NodeList, start: int, limit: int | None) -> Iterator[tuple[Node, int, int]]:
        """The slots of its entries from the id `start` on, at most `limit`, node by node."""
        left = limit
        for node, low, high in stream.slot_ranges(max(start, self.first), self.last):
            if left is None:
                yield node, low, high
            else:
                yield node, low, min(high, low + left)
                left -= high - low
                if left <= 0:
                    break

    def holds(self, entry_id: int, stream: NodeList) -> bool:
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


# owned, time, order, first, something that is never equal, run
_Rank: TypeAlias = tuple[bool, int, int, int, int, Run]


class PendingList:
    """All pending entries of one group. The stream passed in is always the group's own."""

    __slots__ = ("_heap", "_order", "index", "nobody")

    def __init__(self, nobody: Consumer) -> None:
        self.index = RunIndex()
        self.nobody = nobody  # whose runs are those that XNACK released
        self._order = 0
        self._heap: list[_Rank] | None = None

    def __len__(self) -> int:
        return self.index.count

    def add(self, run: Run) -> None:
        """Put a run of pending entries in; nothing in its range may be pending."""
        if not run.order:
            self._order += 1
            run.order = self._order
        self.index.add(run)
        run.consumer.pending.add(run)
        if self._heap is not None:
            heappush(self._heap, self._ranked(run))

    def remove(self, run: Run) -> None:
        """Take a run out of both indexes."""
        self.index.remove(run)
        run.consumer.pending.remove(run)

    def get(self, entry_id: int, stream: NodeList) -> Run | None:
        """The run that holds this id."""
        run = self.index.around(entry_id)
        return run if run is not None and run.holds(entry_id, stream) else None

    def open(self, entry_id: int, stream: NodeList) -> None:
        """Make sure that no run holds both an id below this one and an id not below it."""
        run = self.index.around(entry_id)
        if run is None or run.first == entry_id:
            return
        self.remove(run)
        if run.ids is not None:
            cut = bisect_left(run.ids, entry_id)
            left = run.part(run.first, run.ids[cut - 1], cut)
            right = run.part(run.ids[cut], run.last, run.count - cut)
            left.ids, right.ids = run.ids[:cut], run.ids[cut:]
        else:
            first = stream.slot_id(entry_id)
            assert first is not None  # the run's last id is a slot not below entry_id
            count = stream.slot(entry_id) - stream.slot(run.first)
            below = stream.slot_id_below(entry_id)
            left = run.part(run.first, below, count)
            right = run.part(first, run.last, run.count - count)
        self.add(left)
        self.add(right)

    def between(self, first: int, last: int, stream: NodeList) -> list[Run]:
        """The runs of exactly the pending entries with first ≤ id ≤ last."""
        self.open(first, stream)
        self.open(last + 1, stream)
        index = self.index
        return index.runs[index.at(first) : bisect_right(index.firsts, last)]

    def discard(self, first: int, last: int, stream: NodeList) -> int:
        """Drop all that is pending with first ≤ id ≤ last; how many entries that was."""
        runs = self.between(first, last, stream)
        for run in runs:
            self.remove(run)
        return sum(run.count for run in runs)

    def discard_all(self, ranges: list[tuple[int, int]], stream: NodeList) -> int:
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

    def _thin(self, run: Run, ranges: list[tuple[int, int]], stream: NodeList) -> int:
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
            rest = run.part(kept[0], kept[-1], len(kept))
            rest.ids = kept
            self.add(rest)
        return run.count - len(kept)

    def take(self, entry_id: int, stream: NodeList) -> Run | None:
        """Take one entry out and return it as a run of its own; None when it is not pending."""
        if self.get(entry_id, stream) is None:
            return None
        (run,) = self.between(entry_id, entry_id, stream)
        self.remove(run)
        return run

    def put(self, entry_id: int, consumer: Consumer, time: int, deliveries: int, stream: NodeList) -> None:
        """Make one entry pending that is not; it joins its left neighbour where the two are alike."""
        # A run with its ids written down may span an id that is not in it.
        self.open(entry_id, stream)
        at = bisect_left(self.index.firsts, entry_id) - 1
        if at >= 0:
            left = self.index.runs[at]
            alike = left.consumer is consumer and left.time == time and left.deliveries == deliveries
            # Only what was put in last: an entry in between would come out of order by age.
            alike = alike and left.order == self._order
            if alike and left.ids is None and _are_neighbours(left.last, entry_id, stream):
                left.last = entry_id
                left.count += 1
                self.index.count += 1
                consumer.pending.count += 1
                return
        self.add(Run(entry_id, entry_id, 1, consumer, time, deliveries))

    def move(self, run: Run, consumer: Consumer, time: int, deliveries: int) -> Run:
        """Deliver a whole run again: what it is now."""
        self.remove(run)
        moved = Run(run.first, run.last, run.count, consumer, time, deliveries)
        moved.ids = run.ids
        self.add(moved)
        return moved

    # By age

    def _ranked(self, run: Run) -> _Rank:
        return run.consumer is not self.nobody, run.time, run.order, run.first, id(run), run

    def due(self, latest: int) -> Generator[Run, None, None]:
        """The runs that were released or last delivered not after `latest`, the oldest first.

        The runs may be moved or removed meanwhile; what is delivered meanwhile does not come up.
        """
        if self._heap is None or len(self._heap) > 2 * len(self.index.runs) + 1000:
            self._heap = list(map(self._ranked, self.index.runs))
            heapify(self._heap)
        heap, bound = self._heap, self._order
        passed: list[_Rank] = []
        try:
            while heap and heap[0][1] <= latest and heap[0][2] <= bound:
                rank = heappop(heap)
                if not self._holds(rank):
                    continue
                passed.append(rank)
                yield rank[5]
        finally:
            for rank in passed:
                if self._holds(rank):
                    heappush(heap, rank)

    def _holds(self, rank: _Rank) -> bool:
        first, run = rank[3], rank[5]
        at = bisect_left(self.index.firsts, first)
        return at < len(self.index.runs) and self.index.runs[at] is run

    def keep_ids(self, first: int, last: int, stream: NodeList) -> None:
        """Write down the ids with first ≤ id ≤ last: the stream is about to forget them."""
        index = self.index
        at = index.at(first)
        if at == len(index.firsts) or index.firsts[at] > last:
            return
        for run in self.between(first, last, stream):
            if run.count > 1 and run.ids is None:
                run.ids = run.id_list(stream)


def _are_neighbours(first: int, second: int, stream: NodeList) -> bool:
    """Whether both ids have slots in the stream, one right after the other."""
    return stream.slot_id(first) == first and stream.slot_id(first + 1) == second


class Consumer:
    """One reader's name within a group."""

    __slots__ = ("active", "name", "pending", "seen")

    def __init__(self, name: bytes, now: int) -> None:
        self.name = name
        self.seen = now  # last attempt to read or claim, Unix milliseconds
        self.active = -1  # last time that an entry was delivered or claimed; -1: never
        self.pending = RunIndex()
