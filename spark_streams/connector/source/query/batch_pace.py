"""Limit of a micro-batch by its time (option targetBatchTime). Pure: entries and seconds of batches in, a limit out.

Spark asks for the batch that follows as soon as a batch is in its commit log (docs/internals/facts.md, S4). So the time
of a batch is the time from its trigger to the next call. Time without entries is in no batch. With a trigger interval
Spark calls later, and nothing tells the source when the batch ended (S100): the pause then counts.

    run begins ── at most 1,000 ──> batch ──> rate × target ──> batch ──> rate × target …

The rate is the lower one of two: that of the last batch, and that of the batches of about its size among the last three
together. So one slow batch lowers the next limit at once, and one fast batch does not raise it alone. Smaller batches
have lower rates, because each batch has a fixed cost. In the first batch of a run Spark starts Python processes, for
seconds: it lowers the limit to a half at most, and as soon as there is another batch, it no longer counts.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

FIRST = 1_000  # most entries of the first batch of a run
GROWTH = 10  # a limit is at most this many times the largest of the last batches
MINIMUM = 100  # entries; if a batch of so few takes too long, its time is not that of its entries
_WINDOW = 3  # batches
_ALIKE = 0.75  # of the entries of the last batch: batches of about its size have at least so many
_SHORTEST = 0.001  # seconds
_TOO_LONG = 1.5  # times the target
_log = logging.getLogger("spark_streams.connector.source")


@dataclass(frozen=True)
class TimedBatch:
    """A batch that has ended. is_first: of the run."""

    entries: int
    seconds: float
    is_first: bool = False


@dataclass(frozen=True)
class RunningBatch:
    """A batch that was planned. began: seconds of a monotonic clock."""

    entries: int
    began: float


@dataclass(frozen=True)
class BatchPace:
    """What a run knows of the time of its batches. target: seconds of a batch; timed: the last batches, the newest
    last; running: the batch that Spark runs; limit: the most entries of the last batch, of all streams together."""

    target: float
    timed: tuple[TimedBatch, ...] = ()
    running: RunningBatch | None = None
    limit: int | None = None

    def called(self, now: float) -> BatchPace:
        """Return the pace when Spark asks for the next batch: the batch that was running has ended."""
        batch = self.running
        if batch is None:
            return self
        if not batch.entries:
            return replace(self, running=None)
        ended = TimedBatch(batch.entries, max(_SHORTEST, now - batch.began), is_first=not self.timed)
        warm = [earlier for earlier in self.timed if not earlier.is_first]
        return replace(self, timed=(*warm, ended)[-_WINDOW:], running=None)

    def limited(self, before: int, most: int | None) -> BatchPace:
        """Return the pace with the limit of the next batch. before: entries of the batch before it in the checkpoint;
        most: maxEntriesPerTrigger."""
        by_time = self._by_rate() if self.timed else min(FIRST, before or FIRST)
        limit = max(MINIMUM, by_time)
        return replace(self, limit=limit if most is None else min(limit, most))

    def planned(self, entries: int, began: float) -> BatchPace:
        """Return the pace after a batch was planned. began: when its trigger began."""
        return replace(self, running=RunningBatch(entries, began))

    def problem(self) -> str | None:
        """Return why batches do not take the target, and what to do; None: nothing is known."""
        if not self.timed or self.timed[-1].entries > MINIMUM or self.timed[-1].seconds <= _TOO_LONG * self.target:
            return None
        return (
            f"targetBatchTime={self.target:g}s cannot be met: a batch of {self.timed[-1].entries} entries took "
            f"{self.timed[-1].seconds:.1f} s, and no limit is below {MINIMUM}. If the query has a trigger interval, "
            "remove it. Otherwise raise targetBatchTime, or set maxEntriesPerTrigger"
        )

    def to_json(self) -> dict[str, int]:
        """Return the limit as the query's progress shows it."""
        return {} if self.limit is None else {"limit": self.limit}

    def _by_rate(self) -> int:
        last = self.timed[-1]
        alike = [batch for batch in self.timed if batch.entries >= _ALIKE * last.entries]
        by_rate = math.floor(min(_rate([last]), _rate(alike)) * self.target)
        if last.is_first:
            by_rate = max(by_rate, last.entries // 2)
        return min(by_rate, GROWTH * max(batch.entries for batch in self.timed))


class Pacing:
    """The pace of the batches of one run. target: milliseconds (targetBatchTime), None: nothing is limited; now: a
    monotonic clock, in seconds."""

    def __init__(self, target: int | None, now: Callable[[], float]) -> None:
        self._pace = None if target is None else BatchPace(target / 1000)
        self._now = now
        self._began = 0.0  # the last trigger
        self._has_warned = False  # that batches do not take the target

    def called(self) -> None:
        """Spark asks for the next batch: the batch that was running has ended."""
        if self._pace is not None:
            self._pace = self._pace.called(self._now())

    def limit(self, before: int, most: int | None) -> int | None:
        """Begin a trigger. Return its limit; see BatchPace.limited for the parameters."""
        if self._pace is None:
            return most
        self._began = self._now()
        pace = self._pace = self._pace.limited(before, most)
        if not self._has_warned and (problem := pace.problem()) is not None:
            self._has_warned = True
            _log.warning("%s", problem)
        return pace.limit

    def planned(self, entries: int) -> None:
        """The trigger has planned a batch of so many entries."""
        if self._pace is not None:
            self._pace = self._pace.planned(entries, self._began)

    def to_json(self) -> dict[str, int]:
        """Return the last limit as the query's progress shows it."""
        return {} if self._pace is None else self._pace.to_json()


def _rate(batches: Sequence[TimedBatch]) -> float:
    """Return the entries per second of these batches together."""
    return sum(batch.entries for batch in batches) / sum(batch.seconds for batch in batches)
