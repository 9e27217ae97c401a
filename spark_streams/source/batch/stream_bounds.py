"""What a batch reads of a stream: how options and filters bound it. Pure: ids in, a run out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from spark_streams.model.ids import MAX_ID, MIN_ID, U64_MAX, StreamId
from spark_streams.source.entry_range import EntryRange

_T = TypeVar("_T")


@dataclass(frozen=True)
class Head:
    """What a stream holds when the read is planned. first, last: its oldest and newest entry, None where it is empty;
    length: how many entries; entry_bytes: about how large one is; letters: the oldest one is a dead letter."""

    first: StreamId | None
    last: StreamId | None
    length: int
    entry_bytes: int = 0
    letters: bool = False


@dataclass(frozen=True)
class TextBound:
    """From `id >= '1700000000000'` or `id <= …`: a comparison of texts, whose order is the order of ids only among ids
    with equally many digits before the dash, and there only up to the dash.

    Among ids whose milliseconds have `digits` digits the filter keeps none with less than `least` or more than `most`.
    """

    digits: int
    least: int = 0
    most: int = U64_MAX


@dataclass(frozen=True)
class Narrowing:
    """What filters leave to be read: an entry outside of it fits no filter, an entry inside of it may not, either.

    streams, ids: only these, or None for any; after < id ≤ last; text: see TextBound.
    """

    streams: frozenset[str] | None = None
    ids: frozenset[StreamId] | None = None
    after: StreamId = MIN_ID
    last: StreamId = MAX_ID
    text: tuple[TextBound, ...] = ()

    def meet(self, other: Narrowing) -> Narrowing:
        """What both leave."""
        return Narrowing(
            _both(self.streams, other.streams),
            _both(self.ids, other.ids),
            max(self.after, other.after),
            min(self.last, other.last),
            self.text + other.text,
        )

    def among(self, streams: Iterable[str]) -> tuple[str, ...]:
        """Those of these streams that are left."""
        return tuple(stream for stream in streams if self.streams is None or stream in self.streams)


def _both(one: frozenset[_T] | None, other: frozenset[_T] | None) -> frozenset[_T] | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def run_of(stream: str, head: Head, after: StreamId, last: StreamId, narrowing: Narrowing) -> EntryRange | None:
    """What is to be read of a stream between two positions, after < id ≤ last; None where there is nothing.

    The newest entry bounds it: entries that are added later are not part of it, whenever it is read. Its count is an
    estimate, unless it is the whole stream.
    """
    if head.first is None or head.last is None:
        return None
    after = max(after, narrowing.after, head.first.previous())
    last = min(last, narrowing.last, head.last)
    for bound in narrowing.text:
        if after < last and len(str(after.next().ms)) == len(str(last.ms)) == bound.digits:
            after = max(after, StreamId(bound.least, 0).previous() if bound.least > 0 else MIN_ID)
            last = min(last, StreamId(bound.most, U64_MAX))
    if not after < last:
        return None
    if narrowing.ids is None:
        return EntryRange(
            stream, after, last, _share_of(head, head.first, head.last, after, last), owned=True, counted=False
        )
    ids = sorted(one for one in narrowing.ids if after < one <= last)
    if not ids:
        return None
    packed = b"".join(b"$%d\r\n%b\r\n" % (len(bytes(one)), bytes(one)) for one in ids)
    return EntryRange(stream, ids[0].previous(), ids[-1], len(ids), owned=False, ids=packed, counted=False)


def _share_of(head: Head, first: StreamId, newest: StreamId, after: StreamId, last: StreamId) -> int:
    """How many of the stream's entries lie in (after, last] if they are spread evenly; all where that is all."""
    if after < first and last >= newest:
        return head.length
    whole, part = newest.ms - first.ms, last.ms - after.ms
    if whole == 0:
        whole, part = newest.seq - first.seq, min(last.seq - after.seq, newest.seq - first.seq)
    return max(1, min(head.length, round(head.length * part / max(1, whole))))
