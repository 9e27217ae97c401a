"""Which letters are meant. Pure: pages in, masks out."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow.compute as pc

from spark_streams.deadletter.envelope import raw
from spark_streams.deadletter.page import LetterPage, by_value
from spark_streams.ids import MAX_ID, MIN_ID, StreamId
from spark_streams.wire.lines import Mask


@dataclass(frozen=True)
class Criteria:
    """All must hold; of several texts for one name, any. What is not given holds.

    streams, reasons, stages, errors: `dl.stream` …, with * ? [] as in file names; fields: (name, value) of original
    fields; first, last: bounds of the letters' own ids; older, newer: their age in milliseconds.
    """

    streams: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    fields: tuple[tuple[str, str], ...] = ()
    first: StreamId = MIN_ID
    last: StreamId = MAX_ID
    older: int | None = None
    newer: int | None = None

    def range(self, now: int) -> tuple[StreamId, StreamId]:
        """(first, last) id of letters that can be meant; now: the server's clock, ms since the epoch."""
        first, last = self.first, self.last
        if self.newer is not None:
            first = max(first, StreamId(max(now - self.newer, 0), 0))
        if self.older is not None:
            last = min(last, StreamId(max(now - self.older, 0), 0))
        return first, last

    @property
    def everything(self) -> bool:
        """Whether every letter within the range is meant."""
        return not (self.streams or self.reasons or self.stages or self.errors or self.fields)

    def mask(self, page: LetterPage) -> Mask:
        """Per row, whether it is meant (its id aside)."""
        found = np.ones(page.count, np.bool_)
        told = {"stream": self.streams, "reason": self.reasons, "stage": self.stages, "error": self.errors}
        for name, patterns in told.items():
            if patterns:
                found &= by_value(page.told(name), partial(_matches, patterns)).astype(bool)
        for name, value in self.fields:
            same = pc.equal(page.field(raw(name)), raw(value))
            found &= pc.fill_null(same, False).to_numpy(zero_copy_only=False)
        return found


def _matches(patterns: tuple[str, ...], value: str) -> bool:
    return any(value == pattern or fnmatch.fnmatchcase(value, pattern) for pattern in patterns)
