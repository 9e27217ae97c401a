"""Consumer groups: a position in the stream, consumers, and what was delivered and not acknowledged.

    group   last_id       the newest entry delivered: `>` means after this one
            entries_read  how many entries of the stream's whole life lie up to there; None when it cannot be told
            pending       ranges of all consumers (see pending_list.py)
            consumers     name → consumer, each with the index of its own ranges

Source of the rules: XGROUP, XREADGROUP, XACK; the counter follows Redis' `streamEstimateDistanceFromFirstEverEntry`
and `streamReplyWithRange`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from spark_streams.engine.store import entryid
from spark_streams.engine.store.pel_range import Consumer, PelRange
from spark_streams.engine.store.pending_list import PendingList

if TYPE_CHECKING:
    from spark_streams.engine.store.node import Node
    from spark_streams.engine.store.node_list import NodeList, Slice


# After so many ids in a row that do not follow one another in a range, XACK takes the rest one by one.
_MISSES = 8


class Group:
    """A consumer group of one stream, which is passed to every method that needs it."""

    __slots__ = ("consumers", "entries_read", "last_id", "nobody", "pending")

    def __init__(self, last_id: int, entries_read: int | None) -> None:
        self.last_id = last_id
        self.entries_read = entries_read
        self.nobody = Consumer(b"", 0)  # not among the consumers: holds what XNACK has released
        self.pending = PendingList(self.nobody)
        self.consumers: dict[bytes, Consumer] = {}

    def consumer(self, name: bytes, now: int) -> Consumer:
        """The consumer of this name, made on first mention."""
        consumer = self.consumers.get(name)
        if consumer is None:
            consumer = self.consumers[name] = Consumer(name, now)
        consumer.seen = now
        return consumer

    def drop_consumer(self, name: bytes) -> int:
        """Forget a consumer with all that is pending for it; how many entries that was."""
        consumer = self.consumers.pop(name, None)
        if consumer is None:
            return 0
        count = consumer.pending.count
        for pel_range in list(consumer.pending.ranges):
            self.pending.remove(pel_range)
        return count

    def deliver(self, slices: Sequence[Slice], consumer: Consumer | None, now: int, stream: NodeList) -> None:
        """Move on over these new entries and make them pending for the consumer (None: NOACK)."""
        first = slices[0].node.id_at(slices[0].low)
        last = slices[-1].node.id_at(slices[-1].high - 1)
        self._count_read(slices, last, stream)
        self.last_id = last
        if consumer is None:
            return
        index = self.pending.index
        if index.ranges and index.ranges[-1].last >= first:
            at = index.at(first)
            if at < len(index.ranges) and index.firsts[at] <= last:
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
        """Add a range of fresh entries; a single one joins the newest range where the two are alike."""
        if pel_range.count == 1:
            self.pending.put(pel_range.first, pel_range.consumer, pel_range.time, 1, stream)
        else:
            self.pending.add(pel_range)

    def _deliver_again(self, slices: Sequence[Slice], consumer: Consumer, now: int, stream: NodeList) -> None:
        """Some are pending already, because the group was set back: they move to this consumer, counted afresh."""
        for node, low, high in slices:
            for entry_id in node.id_list(low, high):
                self.pending.take(entry_id, stream)
                self.pending.put(entry_id, consumer, now, 1, stream)

    def _count_read(self, slices: Sequence[Slice], last: int, stream: NodeList) -> None:
        """Bring entries_read past these new entries, as Redis does one by one, in constant time.

        The counter goes on as long as no tombstone lies at or above the entry before. Where one does, it cannot be
        told; it is known again at the stream's first entry and at its last.
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
        """How many entries are still to be delivered; None when tombstones make it unknowable (XINFO GROUPS)."""
        if not stream.length:
            return 0
        if self.last_id < stream.first_id and stream.max_deleted_id < stream.first_id:
            return stream.length
        if self.entries_read is not None and not has_tombstone(stream, self.last_id):
            return stream.entries_added - self.entries_read
        read = distance(stream, self.last_id)
        return None if read is None else stream.entries_added - read

    def acknowledge(self, texts: Sequence[bytes], stream: NodeList) -> int:
        """Drop these ids from the pending list (XACK); how many were in it.

        Raises EntryIdError before anything is dropped.
        """
        return self.pending.discard_all([(first, last) for first, last, _ in self.ranges(texts, stream)], stream)

    def ranges(self, texts: Sequence[bytes], stream: NodeList) -> list[tuple[int, int, int]]:
        """These ids as ranges: first, last, how many. Raises EntryIdError.

        Ids that come in the order in which they were delivered are compared as text with those of their PelRange, and
        become one range without being parsed; all of it is pending. A range of one id may be one that is not.
        """
        ranges: list[tuple[int, int, int]] = []
        index = self.pending.index
        at = 0
        misses = 0
        while at < len(texts):
            entry_id = entryid.parse(texts[at])
            matched, last = 1, entry_id
            # Ids that keep not following one another are not compared any more.
            if misses < _MISSES and at + 1 < len(texts):
                pel_range = index.around(entry_id)
                if pel_range is not None and pel_range.count > 1 and pel_range.holds(entry_id, stream):
                    matched, last = _match(pel_range, entry_id, texts, at, stream)
                misses = 0 if matched > 1 else misses + 1
            ranges.append((entry_id, last, matched))
            at += matched
        return ranges

    def take(self, first: int, last: int, count: int, stream: NodeList) -> list[PelRange] | None:
        """What is pending of one of `ranges`, opened, if all of it is still pending; else None."""
        if count == 1 and self.pending.get(first, stream) is None:
            return None
        pel_ranges = self.pending.between(first, last, stream)
        return pel_ranges if sum(pel_range.count for pel_range in pel_ranges) == count else None

    def keep_ids(self, stream: NodeList, node: Node) -> None:
        """The stream is about to drop this node: write down those of its ids that are pending."""
        if len(self.pending):
            self.pending.keep_ids(node.first, node.last, stream)


def _match(pel_range: PelRange, entry_id: int, texts: Sequence[bytes], at: int, stream: NodeList) -> tuple[int, int]:
    """How many of `texts` from `at` on are the range's own ids from `entry_id` on, in order; and the last of them."""
    step = 16
    matched, last = 1, entry_id
    while at + matched < len(texts):
        expected = pel_range.id_texts(stream, last + 1, min(step, len(texts) - at - matched))
        given = texts[at + matched : at + matched + len(expected)]
        if not expected:
            break
        if given != expected:
            same = next(i for i, (one, two) in enumerate(zip(given, expected, strict=True)) if one != two)
            if same:
                matched, last = matched + same, entryid.parse(expected[same - 1])
            break
        matched, last = matched + len(expected), entryid.parse(expected[-1])
        step = min(step * 4, 4096)
    return matched, last


def has_tombstone(stream: NodeList, start: int) -> bool:
    """Whether XDEL removed an entry at or above `start` (`streamRangeHasTombstones`)."""
    return bool(stream.length and stream.max_deleted_id) and start <= stream.max_deleted_id


def distance(stream: NodeList, entry_id: int) -> int | None:
    """How many entries were ever added up to this id; None if unknown (`streamEstimateDistanceFromFirstEverEntry`)."""
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
