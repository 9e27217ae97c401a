"""What a batch holds of a stream: a range of entries that one consumer was given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from spark_streams.model.ids import StreamId


@dataclass(frozen=True)
class EntryRange:
    """Entries of one stream with after < id ≤ last that are ours.

    count: how many of them are ours; owned: whether they are all that the stream held there when they were delivered
    (then XRANGE reads them), or others read from the same range (then a pending list tells which are ours).
    consumer: whose pending list, "" for the membership's own; ids: of a shared range that is no longer pending
    (at-most-once), which entries are ours: packed arguments back to back, as in `PendingPage.ids`.
    counted: False where `count` is an estimate, which nothing is held against.
    """

    stream: str
    after: StreamId
    last: StreamId
    count: int
    owned: bool
    consumer: str = ""
    ids: bytes = b""
    counted: bool = True


def per_stream(ranges: Iterable[EntryRange]) -> Counter[str]:
    """How many entries these ranges have, per stream."""
    found: Counter[str] = Counter()
    for entries in ranges:
        found[entries.stream] += entries.count
    return found
