"""Consumer groups: a position in the stream, consumers, and entries that were delivered and not acknowledged.

    group   last_id       the newest entry delivered: `>` means after this one
            entries_read  entries ever added up to last_id; None if unknown
            pending       ranges of all consumers (see pending_list.py)
            consumers     name → consumer, each with the index of its own ranges

Source of the rules: XGROUP, XREADGROUP, XACK; the counter follows Redis' `streamEstimateDistanceFromFirstEverEntry`
and `streamReplyWithRange`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from spark_streams.engine.store import entryid
from spark_streams.engine.store.pel import Consumer, PelRange, PendingList

if TYPE_CHECKING:
    from spark_streams.engine.store.node import Node
    from spark_streams.engine.store.node_list import NodeList, Slice


# After this number of IDs in a row that do not continue a range, XACK handles the rest one by one.
_MISSES = 8


class StoredGroup:
    """A consumer group of one stream. The stream is passed to every method that needs it."""

    __slots__ = ("consumers", "entries_read", "last_id", "pending", "released")

    def __init__(self, last_id: int, entries_read: int | None) -> None:
        self.last_id = last_id
        self.entries_read = entries_read
        self.released = Consumer(b"", 0)  # not among the consumers: owns entries that XNACK has released
        self.pending = PendingList(self.released)
        self.consumers: dict[bytes, Consumer] = {}

    def consumer(self, name: bytes, now: int) -> Consumer:
        """Return the consumer of this name; create it on first use."""
        consumer = self.consumers.get(name)
        if consumer is None:
            consumer = self.consumers[name] = Consumer(name, now)
        consumer.seen = now
        return consumer

    def drop_consumer(self, name: bytes) -> int:
        """Delete a consumer with its pending entries. Return how many these were."""
        consumer = self.consumers.pop(name, None)
        if consumer is None:
            return 0
        count = consumer.pending.count
        for pel_range in list(consumer.pending.ranges):
            self.pending.remove(pel_range)
        return count

    def deliver(self, slices: Sequence[Slice], consumer: Consumer | None, now: int, stream: NodeList) -> None:
        """Move the group over these new entries and make them pending for the consumer (None: for none)."""
        first = slices[0].node.id_at(slices[0].low)
        last = slices[-1].node.id_at(slices[-1].high - 1)
        self._count_read(slices, last, stream)
        self.last_id = last
        if consumer is None:
            return
        index = self.pending.index
        if index.ranges and index.ranges[-1].last >= first:
            position = index.find_index(first)
            if position < len(index.ranges) and index.firsts[position] <= last:
                self._deliver_again(slices, consumer, now, stream)
                return
        pel_range: PelRange | None = None
        above: Node | None = None
        for node, low, high in slices:
            unbroken = low == 0 and above is not None if node is not above else False
            if pel_range is not None and unbroken:
                pel_range.last = node.id_at(high - 1)
                pel_range.count += high - low
            else:
                if pel_range is not None:
                    self._add_new(pel_range, stream)
                pel_range = PelRange(node.id_at(low), node.id_at(high - 1), high - low, consumer, now, 1)
            above = node if high == node.slots else None
        if pel_range is not None:
            self._add_new(pel_range, stream)

    def _add_new(self, pel_range: PelRange, stream: NodeList) -> None:
        """Add a range of new entries; a single entry joins the newest range if consumer, time and count are equal."""
        if pel_range.count == 1:
            self.pending.put(pel_range.first, pel_range.consumer, pel_range.time, 1, stream)
        else:
            self.pending.add(pel_range)

    def _deliver_again(self, slices: Sequence[Slice], consumer: Consumer, now: int, stream: NodeList) -> None:
        """Deliver entries of which some are pending, because the group was set back. Their counts restart."""
        for node, low, high in slices:
            for entry_id in node.id_list(low, high):
                self.pending.take(entry_id, stream)
                self.pending.put(entry_id, consumer, now, 1, stream)

    def _count_read(self, slices: Sequence[Slice], last: int, stream: NodeList) -> None:
        """Advance entries_read past these new entries, with Redis' result but in constant time.

        The counter advances while no tombstone is at or above the previous entry. Otherwise it is unknown, until the
        group reaches the stream's first entry or its last one.
        """
        first = slices[0].node.id_at(slices[0].low)
        more = sum(high - low for _node, low, high in slices) - 1
        read = self.entries_read
        if read is not None and self.last_id >= stream.first_id and not has_tombstone(stream, self.last_id):
            read += 1
        else:
            read = distance(stream, first)
        if more:
            deleted = stream.max_deleted_id
            if read is not None and (not deleted or first > deleted):
                read += more
            else:
                read = stream.entries_added if last == stream.last_id and last >= deleted else None
        self.entries_read = read

    def lag(self, stream: NodeList) -> int | None:
        """Return how many entries are to be delivered; None if tombstones make that unknown (XINFO GROUPS)."""
        if not stream.length:
            return 0
        if self.last_id < stream.first_id and stream.max_deleted_id < stream.first_id:
            return stream.length
        if self.entries_read is not None and not has_tombstone(stream, self.last_id):
            return stream.entries_added - self.entries_read
        read = distance(stream, self.last_id)
        return None if read is None else stream.entries_added - read

    def acknowledge(self, texts: Sequence[bytes], stream: NodeList) -> int:
        """Remove these IDs from the pending list (XACK). Return how many were pending.

        Raises EntryIdError before anything is removed.
        """
        return self.pending.discard_all([(first, last) for first, last, _ in self.ranges(texts, stream)], stream)

    def ranges(self, texts: Sequence[bytes], stream: NodeList) -> list[tuple[int, int, int]]:
        """Return these IDs as ranges: first, last, count. Raises EntryIdError.

        IDs in the order of delivery are compared as text with those of their PelRange. They become one range without
        being parsed, and all of it is pending. A range of one ID may be not pending.
        """
        ranges: list[tuple[int, int, int]] = []
        index = self.pending.index
        position = 0
        misses = 0
        while position < len(texts):
            entry_id = entryid.parse(texts[position])
            matched, last = 1, entry_id
            # IDs that repeatedly do not continue a range are not compared any more.
            if misses < _MISSES and position + 1 < len(texts):
                pel_range = index.around(entry_id)
                if pel_range is not None and pel_range.count > 1 and pel_range.holds(entry_id, stream):
                    matched, last = _match(pel_range, entry_id, texts, position, stream)
                misses = 0 if matched > 1 else misses + 1
            ranges.append((entry_id, last, matched))
            position += matched
        return ranges

    def take(self, first: int, last: int, count: int, stream: NodeList) -> list[PelRange] | None:
        """Return the pending part of one of `ranges`, split off, if all of it is still pending; else None."""
        if count == 1 and self.pending.get(first, stream) is None:
            return None
        pel_ranges = self.pending.between(first, last, stream)
        return pel_ranges if sum(pel_range.count for pel_range in pel_ranges) == count else None

    def keep_ids(self, stream: NodeList, node: Node) -> None:
        """Store the pending IDs of this node, which the stream is about to drop."""
        if len(self.pending):
            self.pending.keep_ids(node.first, node.last, stream)


def _match(pel_range: PelRange, entry_id: int, texts: Sequence[bytes], start: int, stream: NodeList) -> tuple[int, int]:
    """Return how many of `texts` from `start` on continue the range after `entry_id`, and the last matching ID."""
    step = 16
    matched, last = 1, entry_id
    while start + matched < len(texts):
        expected = pel_range.id_texts(stream, last + 1, min(step, len(texts) - start - matched))
        received = texts[start + matched : start + matched + len(expected)]
        if not expected:
            break
        if received != expected:
            matching = next(
                i
                for i, (text, expected_text) in enumerate(zip(received, expected, strict=True))
                if text != expected_text
            )
            if matching:
                matched, last = matched + matching, entryid.parse(expected[matching - 1])
            break
        matched, last = matched + len(expected), entryid.parse(expected[-1])
        step = min(step * 4, 4096)
    return matched, last


def has_tombstone(stream: NodeList, start: int) -> bool:
    """Whether XDEL removed an entry at or above `start` (`streamRangeHasTombstones`)."""
    return bool(stream.length and stream.max_deleted_id) and start <= stream.max_deleted_id


def distance(stream: NodeList, entry_id: int) -> int | None:
    """Return how many entries were ever added up to this ID; None if unknown.

    Source: Redis' `streamEstimateDistanceFromFirstEverEntry`.
    """
    if not stream.entries_added:
        return 0
    if not stream.length and entry_id <= stream.last_id:
        return stream.entries_added
    if entry_id and entry_id < stream.max_deleted_id:
        return None
    if entry_id == stream.last_id:
        return stream.entries_added
    if entry_id > stream.last_id:
        return None
    if not stream.max_deleted_id or stream.max_deleted_id < stream.first_id:
        if entry_id < stream.first_id:
            return stream.entries_added - stream.length
        if entry_id == stream.first_id:
            return stream.entries_added - stream.length + 1
    return None
