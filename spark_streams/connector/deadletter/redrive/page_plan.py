"""Plan of a redrive for one page of dead letters. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from spark_streams.connector.deadletter.kind_counts import KindCounts
from spark_streams.connector.deadletter.page import DeadLetterPage
from spark_streams.connector.wire.entries.lines import Index
from spark_streams.connector.wire.entries.xadd_bytes import Requests


@dataclass(frozen=True)
class RedrivePart:
    """Dead letters of a plan that are sent together. places: their indices in the plan's `rows`; ids: theirs; requests:
    packed XADDs."""

    places: Index
    ids: Sequence[bytes]
    requests: bytes | memoryview = b""

    def without(self, refused: Collection[int]) -> RedrivePart:
        """Return the part without these indices of `ids`, and without XADDs."""
        accepted = [place for place in range(len(self.ids)) if place not in refused]
        return RedrivePart(self.places[accepted], [self.ids[place] for place in accepted])


@dataclass(frozen=True)
class PagePlan:
    """Plan for one page. rows: of the page, that leave the dead-letter stream: first those that are moved, then those
    that are parked; ids: theirs; requests: an XADD for each; to: the destination streams; target: each row's index in
    `to`.

    moved, parked: their numbers; skipped: not moved by the transform; homeless: not moved because they name no stream;
    refused: not moved because their stream is not allowed; counts: of moved, parked, homeless and refused dead letters,
    by (action, destination, stage, reason); last: the last row that was examined."""

    page: DeadLetterPage
    rows: Index
    ids: Sequence[bytes]
    requests: Requests
    to: Sequence[bytes]
    target: Index
    moved: int
    parked: int
    skipped: int
    homeless: int
    refused: int
    counts: KindCounts
    last: int

    @property
    def last_id(self) -> bytes | None:
        """The ID of the last row that was examined; None if there is none."""
        return self.page.ids[self.last].as_py() if self.last >= 0 else None

    def part(self, to: Collection[bytes]) -> RedrivePart:
        """Return the dead letters for some of the streams."""
        if len(to) == len(self.to):
            return RedrivePart(np.arange(len(self.rows)), self.ids, self.requests.data)
        codes = [place for place, stream in enumerate(self.to) if stream in to]
        places = np.flatnonzero(np.isin(self.target, codes))
        requests = b"".join(self.requests.slice(place, place + 1) for place in places.tolist())
        return RedrivePart(places, [self.ids[place] for place in places.tolist()], requests)
