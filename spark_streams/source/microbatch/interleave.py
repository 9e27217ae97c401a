"""What a batch has of a stream in the stream's order (`ordered`), though several consumers hold it.

Claimed entries lie below the new ones of their batch. Among what a crash has left pending they lie anywhere: those of
this query, and those that it has claimed and not logged, take turns with them. A range that only one consumer has
entries in is read as it is; where ranges overlap they are cut where the entries change hands.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from spark_streams.ids import StreamId
from spark_streams.source.entry_range import EntryRange
from spark_streams.source.limits import Limits
from spark_streams.source.membership import Membership
from spark_streams.source.pending_list import PendingRange, pending_ranges
from spark_streams.wire.entries.pending_page import texts_of
from spark_streams.wire.server import Server


def in_order(server: Server, member: Membership, ranges: Sequence[EntryRange], limits: Limits) -> list[EntryRange]:
    """The ranges, those of a stream by the ids of their entries. Raises GroupMissingError, ServerError."""
    claimed = [entries for entries in ranges if entries.consumer]
    if not claimed:
        return list(ranges)
    firsts = [replace(_range(entries), most=1) for entries in claimed]
    starts = pending_ranges(server, member, firsts, 1, limits=limits)
    first = {(entries.stream, entries.consumer, entries.after): entries.last.previous() for entries in starts}
    begun = [
        replace(entries, after=first.get((entries.stream, entries.consumer, entries.after), entries.after))
        for entries in ranges
    ]
    found: list[EntryRange] = []
    for _, group in itertools.groupby(
        sorted(begun, key=lambda entries: entries.stream), key=lambda entries: entries.stream
    ):
        for together in _overlapping(sorted(group, key=lambda entries: (entries.after, entries.last))):
            found += together if len(together) == 1 else _cut(server, member, together, limits)
    return found


def _range(entries: EntryRange) -> PendingRange:
    return PendingRange(entries.stream, entries.last, entries.after, entries.consumer)


def _overlapping(ranges: Sequence[EntryRange]) -> Iterator[list[EntryRange]]:
    """Runs of a stream in groups of which none reaches into another. They come sorted."""
    together: list[EntryRange] = []
    for entries in ranges:
        if together and entries.after >= max(one.last for one in together):
            yield together
            together = []
        together.append(entries)
    if together:
        yield together


def _cut(server: Server, member: Membership, ranges: Sequence[EntryRange], limits: Limits) -> list[EntryRange]:
    """The same entries as ranges that follow each other."""
    held: list[tuple[StreamId, str]] = []
    pending = [_range(entries) for entries in ranges]
    for entries in pending_ranges(server, member, pending, limits.pending_page, keep_ids=True, limits=limits):
        held += [(StreamId.parse(text), entries.consumer) for text in texts_of(entries.ids).to_pylist()]
    found: list[EntryRange] = []
    for consumer, group in itertools.groupby(sorted(held), key=lambda one: one[1]):
        ids = [entry for entry, _ in group]
        found.append(EntryRange(ranges[0].stream, ids[0].previous(), ids[-1], len(ids), owned=False, consumer=consumer))
    if not found:
        return list(ranges)
    # What somebody has taken since it was counted is missed by whoever reads.
    missing = sum(entries.count for entries in ranges) - len(held)
    return [*found[:-1], replace(found[-1], count=found[-1].count + max(0, missing))]
