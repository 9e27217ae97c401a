"""Bounds of a batch read on one stream, from options and filters. Pure: IDs in, a range out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from spark_streams.base.ids import MAX_ID, MIN_ID, U64_MAX, StreamId
from spark_streams.connector.source.offset import Range
from spark_streams.connector.source.partitioning import ALL, Part

_T = TypeVar("_T")


@dataclass(frozen=True)
class StreamHead:
    """State of a stream when the read is planned. first, last: IDs of its oldest and newest entry, None if it is empty;
    length: in entries; entry_bytes: estimated size of an entry; has_dead_letters: its oldest entry is a dead letter;
    generated: ID of the last entry ever added."""

    first: StreamId | None
    last: StreamId | None
    length: int
    entry_bytes: int = 0
    has_dead_letters: bool = False
    generated: StreamId = MIN_ID


@dataclass(frozen=True)
class TextBound:
    """Bound of a filter such as `id >= '1700000000000'`, which compares texts. Texts have the order of IDs only if the
    milliseconds have equally many digits, and only up to the dash.

    Of the IDs whose milliseconds have `digits` digits, the filter keeps none with milliseconds below `lowest` or above
    `highest`.
    """

    digits: int
    lowest: int = 0
    highest: int = U64_MAX


@dataclass(frozen=True)
class Narrowing:
    """Entries that filters may keep. An entry outside of the narrowing matches no filter; one inside may match none.

    streams, ids: only these, or None for all; after < ID ≤ last; text: see TextBound.
    """

    streams: frozenset[str] | None = None
    ids: frozenset[StreamId] | None = None
    after: StreamId = MIN_ID
    last: StreamId = MAX_ID
    text: tuple[TextBound, ...] = ()

    def meet(self, other: Narrowing) -> Narrowing:
        """Return the narrowing that holds what both hold."""
        return Narrowing(
            _intersection(self.streams, other.streams),
            _intersection(self.ids, other.ids),
            max(self.after, other.after),
            min(self.last, other.last),
            self.text + other.text,
        )

    def among(self, streams: Iterable[str]) -> tuple[str, ...]:
        """Return the streams that the narrowing holds."""
        return tuple(stream for stream in streams if self.streams is None or stream in self.streams)


def _intersection(first: frozenset[_T] | None, second: frozenset[_T] | None) -> frozenset[_T] | None:
    if first is None or second is None:
        return second if first is None else first
    return first & second


def part_of(stream: str, head: StreamHead, after: StreamId, last: StreamId, narrowing: Narrowing) -> Part | None:
    """Return what to read between two positions, after < ID ≤ last; None if it is empty.

    The newest entry bounds the range: entries that are added later are never part of it. The count is an estimate,
    unless the range is the whole stream.
    """
    if head.first is None or head.last is None:
        return None
    after = max(after, narrowing.after, head.first.previous())
    last = min(last, narrowing.last, head.last)
    for bound in narrowing.text:
        if after < last and len(str(after.next().ms)) == len(str(last.ms)) == bound.digits:
            after = max(after, StreamId(bound.lowest, 0).previous() if bound.lowest > 0 else MIN_ID)
            last = min(last, StreamId(bound.highest, U64_MAX))
    if not after < last:
        return None
    if narrowing.ids is None:
        return Part(Range(stream, after, last, _share_of(head, head.first, head.last, after, last)), ALL)
    ids = sorted(entry_id for entry_id in narrowing.ids if after < entry_id <= last)
    if not ids:
        return None
    packed = b"".join(b"$%d\r\n%b\r\n" % (len(bytes(entry_id)), bytes(entry_id)) for entry_id in ids)
    return Part(Range(stream, ids[0].previous(), ids[-1], len(ids)), packed)


def _share_of(head: StreamHead, first: StreamId, newest: StreamId, after: StreamId, last: StreamId) -> int:
    """Estimate how many of the stream's entries lie in (after, last], as if they were spread evenly; exact for all."""
    if after < first and last >= newest:
        return head.length
    width, part = newest.ms - first.ms, last.ms - after.ms
    if width == 0:
        width, part = newest.seq - first.seq, min(last.seq - after.seq, newest.seq - first.seq)
    return max(1, min(head.length, round(head.length * part / max(1, width))))
