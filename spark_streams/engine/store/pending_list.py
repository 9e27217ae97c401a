"""The pending entries of a consumer group, as ranges.

Reading in thousands delivers unbroken ranges, so what is pending is kept as ranges too:

    firsts   id          id               id     id            sorted: bisect, never scan
    ranges  [ 1,000    ][ 1,000         ][ 1   ][ 340     ]
             alice       bob              alice  bob           consumer
             12:00:01    12:00:02         11:07  12:00:03      last delivery
             1           1                3      1             deliveries

A range stands for *all slots of the stream* from its first to its last id (dead slots too, if they died after
delivery), so it takes the same memory for one entry and for a million. Delivering or acknowledging a whole range adds
or drops it; acknowledging a part opens just that range. Ranges never overlap.

When a node of the stream goes, the ranges over it write down its ids (`ids`) and no longer need the stream. A range of
one entry never needs to: its first id says it all.

Each range stands in two indexes: its group's and its consumer's. What XNACK has released belongs to no consumer: such
ranges stand with the group's nameless `nobody`, and count as delivered at 0.

XREADGROUP CLAIM wants the entries by age. From its first use on, a group keeps a heap of its ranges by (released first,
time of delivery, order of delivery); a range that changes is pushed again, and what no longer holds is skipped when it
comes up.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Generator
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, TypeAlias

from spark_streams.engine.store.pel_range import Consumer, PelRange, PelRangeIndex

if TYPE_CHECKING:
    from spark_streams.engine.store.node_list import NodeList


# Acknowledged pieces of one range from which on it is rewritten rather than opened for each.
_SCATTERED = 8


# owned, time, order, first, something that is never equal, range
_Rank: TypeAlias = tuple[bool, int, int, int, int, PelRange]


class PendingList:
    """All pending entries of one group. The stream passed in is always the group's own."""

    __slots__ = ("_heap", "_order", "index", "nobody")

    def __init__(self, nobody: Consumer) -> None:
        self.index = PelRangeIndex()
        self.nobody = nobody  # whose ranges are those that XNACK released
        self._order = 0
        self._heap: list[_Rank] | None = None

    def __len__(self) -> int:
        return self.index.count

    def add(self, pel_range: PelRange) -> None:
        """Put a range of pending entries in; nothing within it may be pending yet."""
        if not pel_range.order:
            self._order += 1
            pel_range.order = self._order
        self.index.add(pel_range)
        pel_range.consumer.pending.add(pel_range)
        if self._heap is not None:
            heappush(self._heap, self._ranked(pel_range))

    def remove(self, pel_range: PelRange) -> None:
        """Take a range out of both indexes."""
        self.index.remove(pel_range)
        pel_range.consumer.pending.remove(pel_range)

    def get(self, entry_id: int, stream: NodeList) -> PelRange | None:
        """The range that holds this id."""
        pel_range = self.index.around(entry_id)
        return pel_range if pel_range is not None and pel_range.holds(entry_id, stream) else None

    def open(self, entry_id: int, stream: NodeList) -> None:
        """Make sure that no range holds both an id below this one and an id not below it."""
        pel_range = self.index.around(entry_id)
        if pel_range is None or pel_range.first == entry_id:
            return
        self.remove(pel_range)
        if pel_range.ids is not None:
            cut = bisect_left(pel_range.ids, entry_id)
            left = pel_range.part(pel_range.first, pel_range.ids[cut - 1], cut)
            right = pel_range.part(pel_range.ids[cut], pel_range.last, pel_range.count - cut)
            left.ids, right.ids = pel_range.ids[:cut], pel_range.ids[cut:]
        else:
            first = stream.slot_id(entry_id)
            assert first is not None  # the range's last id is a slot not below entry_id
            count = stream.slot(entry_id) - stream.slot(pel_range.first)
            below = stream.slot_id_below(entry_id)
            left = pel_range.part(pel_range.first, below, count)
            right = pel_range.part(first, pel_range.last, pel_range.count - count)
        self.add(left)
        self.add(right)

    def between(self, first: int, last: int, stream: NodeList) -> list[PelRange]:
        """The ranges of exactly the pending entries with first ≤ id ≤ last."""
        self.open(first, stream)
        self.open(last + 1, stream)
        index = self.index
        return index.ranges[index.at(first) : bisect_right(index.firsts, last)]

    def discard(self, first: int, last: int, stream: NodeList) -> int:
        """Drop all that is pending with first ≤ id ≤ last; how many entries that was."""
        pel_ranges = self.between(first, last, stream)
        for pel_range in pel_ranges:
            self.remove(pel_range)
        return sum(pel_range.count for pel_range in pel_ranges)

    def discard_all(self, ranges: list[tuple[int, int]], stream: NodeList) -> int:
        """`discard` for each range; a range of one id may be one that is not pending.

        Many pieces of one PelRange (somebody acknowledged every other entry) do not open it again and again: what is
        left of it becomes one PelRange with its ids written down.
        """
        dropped = 0
        ranges.sort()
        at = 0
        while at < len(ranges):
            first, last = ranges[at]
            pel_range = self.index.around(first)
            end = at + 1
            if pel_range is not None and pel_range.count > _SCATTERED:
                end = bisect_right(ranges, (pel_range.last, pel_range.last), at)
            if pel_range is not None and end - at > _SCATTERED:
                dropped += self._thin(pel_range, ranges[at:end], stream)
                at = end
                continue
            if first != last or (pel_range is not None and pel_range.holds(first, stream)):
                dropped += self.discard(first, last, stream)
            at += 1
        return dropped

    def _thin(self, pel_range: PelRange, ranges: list[tuple[int, int]], stream: NodeList) -> int:
        """Drop sorted pieces of one range."""
        ids = pel_range.id_list(stream)
        kept: list[int] = []
        at = 0
        for first, last in ranges:
            low = bisect_left(ids, first, at)
            kept += ids[at:low]
            at = bisect_right(ids, last, low)
        kept += ids[at:]
        self.remove(pel_range)
        if kept:
            rest = pel_range.part(kept[0], kept[-1], len(kept))
            rest.ids = kept
            self.add(rest)
        return pel_range.count - len(kept)

    def take(self, entry_id: int, stream: NodeList) -> PelRange | None:
        """Take one entry out and return it as a range of its own; None when it is not pending."""
        if self.get(entry_id, stream) is None:
            return None
        (pel_range,) = self.between(entry_id, entry_id, stream)
        self.remove(pel_range)
        return pel_range

    def put(self, entry_id: int, consumer: Consumer, time: int, deliveries: int, stream: NodeList) -> None:
        """Make one entry pending that is not; it joins its left neighbour where the two are alike."""
        # A range with its ids written down may span an id that is not in it.
        self.open(entry_id, stream)
        at = bisect_left(self.index.firsts, entry_id) - 1
        if at >= 0:
            left = self.index.ranges[at]
            alike = left.consumer is consumer and left.time == time and left.deliveries == deliveries
            # Only what was put in last: an entry in between would come out of order by age.
            alike = alike and left.order == self._order
            if alike and left.ids is None and _are_neighbours(left.last, entry_id, stream):
                left.last = entry_id
                left.count += 1
                self.index.count += 1
                consumer.pending.count += 1
                return
        self.add(PelRange(entry_id, entry_id, 1, consumer, time, deliveries))

    def move(self, pel_range: PelRange, consumer: Consumer, time: int, deliveries: int) -> PelRange:
        """Deliver a whole range again: what it is now."""
        self.remove(pel_range)
        moved = PelRange(pel_range.first, pel_range.last, pel_range.count, consumer, time, deliveries)
        moved.ids = pel_range.ids
        self.add(moved)
        return moved

    # By age

    def _ranked(self, pel_range: PelRange) -> _Rank:
        return (
            pel_range.consumer is not self.nobody,
            pel_range.time,
            pel_range.order,
            pel_range.first,
            id(pel_range),
            pel_range,
        )

    def due(self, latest: int) -> Generator[PelRange, None, None]:
        """The ranges that were released or last delivered not after `latest`, the oldest first.

        The ranges may be moved or removed meanwhile; what is delivered meanwhile does not come up.
        """
        if self._heap is None or len(self._heap) > 2 * len(self.index.ranges) + 1000:
            self._heap = list(map(self._ranked, self.index.ranges))
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
        first, pel_range = rank[3], rank[5]
        at = bisect_left(self.index.firsts, first)
        return at < len(self.index.ranges) and self.index.ranges[at] is pel_range

    def keep_ids(self, first: int, last: int, stream: NodeList) -> None:
        """Write down the ids with first ≤ id ≤ last: the stream is about to forget them."""
        index = self.index
        at = index.at(first)
        if at == len(index.firsts) or index.firsts[at] > last:
            return
        for pel_range in self.between(first, last, stream):
            if pel_range.count > 1 and pel_range.ids is None:
                pel_range.ids = pel_range.id_list(stream)


def _are_neighbours(first: int, second: int, stream: NodeList) -> bool:
    """Whether both ids have slots in the stream, one right after the other."""
    return stream.slot_id(first) == first and stream.slot_id(first + 1) == second
