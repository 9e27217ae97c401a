"""The pending entries of a consumer group, as ranges.

Reads of thousands of entries deliver continuous ranges, so pending entries are stored as ranges:

    firsts   id          id               id     id            sorted: bisect, never scan
    ranges  [ 1,000    ][ 1,000         ][ 1   ][ 340     ]
             alice       bob              alice  bob           consumer
             12:00:01    12:00:02         11:07  12:00:03      last delivery
             1           1                3      1             deliveries

A range stands for *all slots of the stream* from its first to its last ID (also dead slots, if they died after
delivery), so it takes the same memory for one entry and for a million. Delivering or acknowledging a whole range adds
or removes it; acknowledging a part splits that range. Ranges never overlap.

Before a node of the stream is dropped, the ranges over it store its IDs (`ids`) and no longer need the stream. A
range of one entry does not need to: its first ID is enough.

Each range is in two indexes: its group's and its consumer's. Entries that XNACK has released belong to no consumer:
their ranges belong to the group's nameless consumer `released`, with delivery time 0.

XREADGROUP CLAIM reads entries by age. From its first use on, a group keeps a heap of its ranges by (released first,
time of delivery, order of delivery). A range that changes is pushed again, and outdated heap entries are skipped.
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


class PelRange:
    """Pending entries first … last of one consumer, with the same delivery time and delivery count."""

    __slots__ = ("consumer", "count", "deliveries", "first", "ids", "last", "order", "time")

    def __init__(self, first: int, last: int, count: int, consumer: Consumer, time: int, deliveries: int) -> None:
        self.first = first
        self.last = last
        self.count = count
        self.consumer = consumer
        self.time = time  # of the last delivery, Unix milliseconds
        self.deliveries = deliveries
        self.order = 0  # rank among the deliveries of the group; 0 until the range is in a list
        self.ids: list[int] | None = None  # stored if the stream no longer has them

    def part(self, first: int, last: int, count: int) -> PelRange:
        """Return a range like this one over some of its entries."""
        part = PelRange(first, last, count, self.consumer, self.time, self.deliveries)
        part.order = self.order
        return part

    def id_list(self, stream: NodeList, start: int = 0, limit: int | None = None) -> list[int]:
        """Return the range's IDs from `start` on, at most `limit`."""
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
        """As `id_list`, as text."""
        if self.count == 1 or self.ids is not None:
            return [entryid.text(entry_id) for entry_id in self.id_list(stream, start, limit)]
        texts: list[bytes] = []
        for node, low, high in self._slots(stream, start, limit):
            texts += node.id_texts(low, high)
        return texts

    def _slots(self, stream: NodeList, start: int, limit: int | None) -> Iterator[tuple[Node, int, int]]:
        """Yield the slots of the entries from the ID `start` on, at most `limit`, node by node."""
        remaining = limit
        for node, low, high in stream.slot_ranges(max(start, self.first), self.last):
            if remaining is None:
                yield node, low, high
            else:
                yield node, low, min(high, low + remaining)
                remaining -= high - low
                if remaining <= 0:
                    break

    def holds(self, entry_id: int, stream: NodeList) -> bool:
        """Whether exactly this ID is one of the entries."""
        if not self.first <= entry_id <= self.last:
            return False
        if entry_id in (self.first, self.last):
            return True
        if self.ids is not None:
            index = bisect_left(self.ids, entry_id)
            return self.ids[index] == entry_id
        return stream.slot_id(entry_id) == entry_id


class PelRangeIndex:
    """Ranges in order of their first IDs."""

    __slots__ = ("count", "firsts", "ranges")

    def __init__(self) -> None:
        self.firsts: list[int] = []
        self.ranges: list[PelRange] = []
        self.count = 0  # entries, not ranges

    def add(self, pel_range: PelRange) -> None:
        """Add a range that overlaps no other range."""
        self.count += pel_range.count
        if not self.firsts or pel_range.first > self.firsts[-1]:
            self.firsts.append(pel_range.first)
            self.ranges.append(pel_range)
            return
        index = bisect_left(self.firsts, pel_range.first)
        self.firsts.insert(index, pel_range.first)
        self.ranges.insert(index, pel_range)

    def remove(self, pel_range: PelRange) -> None:
        """Remove a range."""
        index = bisect_left(self.firsts, pel_range.first)
        del self.firsts[index], self.ranges[index]
        self.count -= pel_range.count

    def find_index(self, entry_id: int) -> int:
        """Return the index of the first range whose last ID is not below this one."""
        index = bisect_right(self.firsts, entry_id) - 1
        if index < 0 or self.ranges[index].last < entry_id:
            index += 1
        return index

    def since(self, entry_id: int) -> Iterator[PelRange]:
        """Return the ranges from `find_index(entry_id)` on. The index must not change meanwhile."""
        return map(self.ranges.__getitem__, range(self.find_index(entry_id), len(self.ranges)))

    def around(self, entry_id: int) -> PelRange | None:
        """Return the range that spans this ID, whether or not it contains it."""
        index = bisect_right(self.firsts, entry_id) - 1
        if index < 0 or self.ranges[index].last < entry_id:
            return None
        return self.ranges[index]


class Consumer:
    """A consumer of a group."""

    __slots__ = ("active", "name", "pending", "seen")

    def __init__(self, name: bytes, now: int) -> None:
        self.name = name
        self.seen = now  # last attempt to read or claim, Unix milliseconds
        self.active = -1  # last time that an entry was delivered or claimed; -1: never
        self.pending = PelRangeIndex()


# Number of acknowledged pieces of one range above which the range is rewritten, not split for each.
_SCATTERED = 8


# owned, time, order, first, a unique number (never equal), range
_Rank: TypeAlias = tuple[bool, int, int, int, int, PelRange]


class PendingList:
    """All pending entries of one group. The stream passed in is always the group's own."""

    __slots__ = ("_heap", "_order", "index", "released")

    def __init__(self, released: Consumer) -> None:
        self.index = PelRangeIndex()
        self.released = released  # owner of the entries that XNACK released
        self._order = 0
        self._heap: list[_Rank] | None = None

    def __len__(self) -> int:
        return self.index.count

    def add(self, pel_range: PelRange) -> None:
        """Add a range of pending entries; none of them may be pending yet."""
        if not pel_range.order:
            self._order += 1
            pel_range.order = self._order
        self.index.add(pel_range)
        pel_range.consumer.pending.add(pel_range)
        if self._heap is not None:
            heappush(self._heap, self._ranked(pel_range))

    def remove(self, pel_range: PelRange) -> None:
        """Remove a range from both indexes."""
        self.index.remove(pel_range)
        pel_range.consumer.pending.remove(pel_range)

    def get(self, entry_id: int, stream: NodeList) -> PelRange | None:
        """Return the range that contains this ID, or None."""
        pel_range = self.index.around(entry_id)
        return pel_range if pel_range is not None and pel_range.holds(entry_id, stream) else None

    def open(self, entry_id: int, stream: NodeList) -> None:
        """Split the range around this ID, so that no range has IDs below it and IDs not below it."""
        pel_range = self.index.around(entry_id)
        if pel_range is None or pel_range.first == entry_id:
            return
        self.remove(pel_range)
        if pel_range.ids is not None:
            cut = bisect_left(pel_range.ids, entry_id)
            lower = pel_range.part(pel_range.first, pel_range.ids[cut - 1], cut)
            upper = pel_range.part(pel_range.ids[cut], pel_range.last, pel_range.count - cut)
            lower.ids, upper.ids = pel_range.ids[:cut], pel_range.ids[cut:]
        else:
            first = stream.slot_id(entry_id)
            assert first is not None  # the range's last id is a slot not below entry_id
            count = stream.slot(entry_id) - stream.slot(pel_range.first)
            below = stream.slot_id_below(entry_id)
            lower = pel_range.part(pel_range.first, below, count)
            upper = pel_range.part(first, pel_range.last, pel_range.count - count)
        self.add(lower)
        self.add(upper)

    def between(self, first: int, last: int, stream: NodeList) -> list[PelRange]:
        """Return ranges that cover exactly the pending entries with first ≤ ID ≤ last."""
        self.open(first, stream)
        self.open(last + 1, stream)
        index = self.index
        return index.ranges[index.find_index(first) : bisect_right(index.firsts, last)]

    def discard(self, first: int, last: int, stream: NodeList) -> int:
        """Remove the pending entries with first ≤ ID ≤ last. Return how many these were."""
        pel_ranges = self.between(first, last, stream)
        for pel_range in pel_ranges:
            self.remove(pel_range)
        return sum(pel_range.count for pel_range in pel_ranges)

    def discard_all(self, ranges: list[tuple[int, int]], stream: NodeList) -> int:
        """`discard` for each range; a range of one ID may be not pending.

        Many pieces of one PelRange (as when every second entry was acknowledged) do not split it many times: its
        remaining entries become one PelRange that stores its IDs.
        """
        dropped = 0
        ranges.sort()
        position = 0
        while position < len(ranges):
            first, last = ranges[position]
            pel_range = self.index.around(first)
            end = position + 1
            if pel_range is not None and pel_range.count > _SCATTERED:
                end = bisect_right(ranges, (pel_range.last, pel_range.last), position)
            if pel_range is not None and end - position > _SCATTERED:
                dropped += self._discard_pieces(pel_range, ranges[position:end], stream)
                position = end
                continue
            if first != last or (pel_range is not None and pel_range.holds(first, stream)):
                dropped += self.discard(first, last, stream)
            position += 1
        return dropped

    def _discard_pieces(self, pel_range: PelRange, ranges: list[tuple[int, int]], stream: NodeList) -> int:
        """Remove sorted pieces of one range."""
        ids = pel_range.id_list(stream)
        remaining_ids: list[int] = []
        start = 0
        for first, last in ranges:
            low = bisect_left(ids, first, start)
            remaining_ids += ids[start:low]
            start = bisect_right(ids, last, low)
        remaining_ids += ids[start:]
        self.remove(pel_range)
        if remaining_ids:
            remaining_range = pel_range.part(remaining_ids[0], remaining_ids[-1], len(remaining_ids))
            remaining_range.ids = remaining_ids
            self.add(remaining_range)
        return pel_range.count - len(remaining_ids)

    def take(self, entry_id: int, stream: NodeList) -> PelRange | None:
        """Remove one entry and return it as a range of its own; None if it is not pending."""
        if self.get(entry_id, stream) is None:
            return None
        (pel_range,) = self.between(entry_id, entry_id, stream)
        self.remove(pel_range)
        return pel_range

    def put(self, entry_id: int, consumer: Consumer, time: int, deliveries: int, stream: NodeList) -> None:
        """Make one entry pending; it joins the range before it if consumer, time and count are equal."""
        # A range that stores its IDs may span an ID that is not in it.
        self.open(entry_id, stream)
        index = bisect_left(self.index.firsts, entry_id) - 1
        if index >= 0:
            neighbour = self.index.ranges[index]
            alike = neighbour.consumer is consumer and neighbour.time == time and neighbour.deliveries == deliveries
            # Only the range added last: an entry in another range would break the order by age.
            alike = alike and neighbour.order == self._order
            if alike and neighbour.ids is None and _are_neighbours(neighbour.last, entry_id, stream):
                neighbour.last = entry_id
                neighbour.count += 1
                self.index.count += 1
                consumer.pending.count += 1
                return
        self.add(PelRange(entry_id, entry_id, 1, consumer, time, deliveries))

    def move(self, pel_range: PelRange, consumer: Consumer, time: int, deliveries: int) -> PelRange:
        """Deliver a whole range again. Return the new range."""
        self.remove(pel_range)
        moved = PelRange(pel_range.first, pel_range.last, pel_range.count, consumer, time, deliveries)
        moved.ids = pel_range.ids
        self.add(moved)
        return moved

    # By age

    def _ranked(self, pel_range: PelRange) -> _Rank:
        return (
            pel_range.consumer is not self.released,
            pel_range.time,
            pel_range.order,
            pel_range.first,
            id(pel_range),
            pel_range,
        )

    def due(self, latest: int) -> Generator[PelRange, None, None]:
        """Yield the ranges that were released, or last delivered not after `latest`, the oldest first.

        The ranges may be moved or removed meanwhile; entries delivered meanwhile are not yielded.
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
        index = bisect_left(self.index.firsts, first)
        return index < len(self.index.ranges) and self.index.ranges[index] is pel_range

    def keep_ids(self, first: int, last: int, stream: NodeList) -> None:
        """Store the pending IDs with first ≤ ID ≤ last: the stream is about to drop them."""
        index = self.index
        position = index.find_index(first)
        if position == len(index.firsts) or index.firsts[position] > last:
            return
        for pel_range in self.between(first, last, stream):
            if pel_range.count > 1 and pel_range.ids is None:
                pel_range.ids = pel_range.id_list(stream)


def _are_neighbours(first: int, second: int, stream: NodeList) -> bool:
    """Whether both IDs have slots in the stream, one directly after the other."""
    return stream.slot_id(first) == first and stream.slot_id(first + 1) == second
