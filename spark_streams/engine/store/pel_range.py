"""Parts of a pending list: a range of pending entries, an index of ranges, and the consumer that owns ranges."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING

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
