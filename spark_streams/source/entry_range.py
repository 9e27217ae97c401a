"""Range of entries of one stream that a batch holds and one consumer received."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from spark_streams.model.ids import StreamId


@dataclass(frozen=True)
class EntryRange:
    """Our entries of one stream with after < ID ≤ last.

    count: number of our entries; owned: True if the stream held no others there when they were delivered, so that
    XRANGE reads them. False if other consumers read from the same range: a pending list says which entries are ours.
    until: entries that were delivered later are not of the range, in milliseconds of the server's clock, 0: all are;
    ids: which entries of a shared range are ours, as packed arguments without separators, as in `PendingPage.ids`;
    empty if they are not known.
    counted: False if `count` is an estimate, by which no loss is detected (spark.read).
    """

    stream: str
    after: StreamId
    last: StreamId
    count: int
    owned: bool
    until: int = 0
    ids: bytes = b""
    counted: bool = True


def entries_per_stream(ranges: Iterable[EntryRange]) -> Counter[str]:
    """Return how many entries these ranges have, per stream."""
    counts: Counter[str] = Counter()
    for entries in ranges:
        counts[entries.stream] += entries.count
    return counts


def ranges_by_stream(ranges: Iterable[EntryRange]) -> dict[str, list[EntryRange]]:
    """Return these ranges in their order, per stream."""
    by_stream: dict[str, list[EntryRange]] = {}
    for entries in ranges:
        by_stream.setdefault(entries.stream, []).append(entries)
    return by_stream
