"""What a redrive is to do with one page of dead letters. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from spark_streams.deadletter.kind_counts import KindCounts
from spark_streams.deadletter.page import DeadLetterPage
from spark_streams.wire.entries.encode import Requests
from spark_streams.wire.entries.lines import Index


@dataclass(frozen=True)
class Part:
    """Dead letters of a plan that go out together. places: in the plan's `rows`; ids: theirs; requests: packed
    XADDs."""

    places: Index
    ids: Sequence[bytes]
    requests: bytes | memoryview = b""

    def without(self, refused: Collection[int]) -> Part:
        """Return the others than these places in `ids`, without their XADDs."""
        kept = [place for place in range(len(self.ids)) if place not in refused]
        return Part(self.places[kept], [self.ids[place] for place in kept])


@dataclass(frozen=True)
class PagePlan:
    """What is to be done with one page. rows: of the page, that leave the dead-letter stream: first those that are
    moved, then those that are parked; ids: theirs; requests: an XADD each; to: the streams that get entries; target:
    each one's place in `to`.

    moved, parked: how many; left: by the transform; homeless: that stay because they name no stream to go to; refused:
    that stay because the stream is not open to them; counts: of moved, parked, homeless and refused ones, by (action,
    destination, stage, reason); last: the last row that was looked at."""

    page: DeadLetterPage
    rows: Index
    ids: Sequence[bytes]
    requests: Requests
    to: Sequence[bytes]
    target: Index
    moved: int
    parked: int
    left: int
    homeless: int
    refused: int
    counts: KindCounts
    last: int

    @property
    def last_id(self) -> bytes | None:
        """The id of the last row that was looked at; None if there is none."""
        return self.page.ids[self.last].as_py() if self.last >= 0 else None

    def part(self, to: Collection[bytes]) -> Part:
        """Return the dead letters that go to some of the streams."""
        if len(to) == len(self.to):
            return Part(np.arange(len(self.rows)), self.ids, self.requests.data)
        codes = [place for place, stream in enumerate(self.to) if stream in to]
        places = np.flatnonzero(np.isin(self.target, codes))
        requests = b"".join(self.requests.slice(place, place + 1) for place in places.tolist())
        return Part(places, [self.ids[place] for place in places.tolist()], requests)
