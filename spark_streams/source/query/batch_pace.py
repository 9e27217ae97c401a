"""Limit of a micro-batch by its time (option targetBatchTime). Pure: entries and seconds of batches in, a limit out.

Spark asks for the batch that follows as soon as a batch is in its commit log (docs/internals/facts.md, S4). So the time
of a batch is the time from its trigger to the next call. Time without entries is in no batch. With a trigger interval
Spark calls later, and nothing tells the source when the batch ended (S100): the pause then counts, and `problem` names
the interval.

    run begins ── 1,000 or a tenth of the last batch ──> batch ──> rate × target ──> batch ──> rate × target …

The rate is the lower one of two: that of the last batch, and that of the batches of about its size among the last three
together. So one slow batch lowers the next limit at once, and one fast batch does not raise it alone. Smaller batches
have lower rates, because each batch has a fixed cost. In the first batch of a run Spark starts Python processes, for
seconds: it lowers the limit to a half at most, and as soon as there is another batch, it no longer counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise

FIRST = 1_000  # entries of a query's first batch
SHARE = 10  # the first batch of a later run is this many times smaller than the batch before it
GROWTH = 10  # a limit is at most this many times the largest of the last batches
MINIMUM = 100  # entries; if a batch of so few takes too long, its time is not that of its entries
_WINDOW = 3  # batches
_ALIKE = 0.75  # of the entries of the last batch: batches of about its size have at least so many
_SHORTEST = 0.001  # seconds
_TOO_LONG = 1.5  # times the target
_TRIGGERS = 5  # so many at multiples of the same whole seconds are those of a trigger interval
_LATE = 0.1  # seconds that such a trigger may be late


class Reason(StrEnum):
    """Why a limit is what it is."""

    FIRST = "first"  # the query has no batch yet
    RESTART = "restart"  # the run begins: a share of the last batch in the checkpoint
    RATE = "rate"  # the entries per second of the last batches
    GROWTH = "growth"  # ten times the largest of the last batches
    MINIMUM = "minimum"  # MINIMUM
    MAXIMUM = "maximum"  # maxEntriesPerTrigger


@dataclass(frozen=True)
class PacedLimit:
    """Most entries of a batch, of all streams together, and why."""

    entries: int
    reason: Reason


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
    last; running: the batch that Spark runs; limit: the last one; triggers: seconds since the epoch of the triggers of
    the last batches."""

    target: float
    timed: tuple[TimedBatch, ...] = ()
    running: RunningBatch | None = None
    limit: PacedLimit | None = None
    triggers: tuple[float, ...] = ()

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
        return replace(self, limit=_limit(self, before, most))

    def planned(self, entries: int, began: float, at: float) -> BatchPace:
        """Return the pace after a batch was planned. began, at: when its trigger began, by the monotonic clock, and in
        seconds since the epoch."""
        return replace(self, running=RunningBatch(entries, began), triggers=(*self.triggers, at)[-_TRIGGERS:])

    def problem(self) -> str | None:
        """Return why batches do not take the target, and what to do; None: nothing is known."""
        interval = _interval(self.triggers)
        if interval is not None and interval * GROWTH > self.target:  # a shorter one delays no growth
            return (
                f"the query seems to have a trigger interval of {interval} s. With targetBatchTime={self.target:g}s "
                "the pause before a trigger counts as time of the batch, so batches stay small. Remove the interval. "
                "If the query is to wait for entries, set minEntriesPerTrigger and maxTriggerDelay"
            )
        if not self.timed or self.timed[-1].entries > MINIMUM or self.timed[-1].seconds <= _TOO_LONG * self.target:
            return None
        return (
            f"targetBatchTime={self.target:g}s cannot be met: a batch of {self.timed[-1].entries} entries took "
            f"{self.timed[-1].seconds:.1f} s, and no limit is below {MINIMUM}. If the query has a trigger interval, "
            "remove it. Otherwise raise targetBatchTime, or set maxEntriesPerTrigger"
        )

    def to_json(self) -> dict[str, object]:
        """Return the limit as the query's progress shows it."""
        limit = self.limit
        return {} if limit is None else {"limit": {"entries": limit.entries, "reason": limit.reason.value}}


def _interval(triggers: Sequence[float]) -> int | None:
    """Return the trigger interval in whole seconds; None: there is none, or it is none that can be recognized. Spark
    waits until a multiple of the interval since the epoch."""
    if len(triggers) < _TRIGGERS:
        return None
    gaps = {round(after - before) for before, after in pairwise(triggers)}
    interval = min(gaps)
    is_regular = len(gaps) == 1 and interval > 0 and all(at % interval < _LATE for at in triggers)
    return interval if is_regular else None


def _limit(pace: BatchPace, before: int, most: int | None) -> PacedLimit:
    limit = _unbounded_limit(pace, before)
    if limit.entries < MINIMUM:
        limit = PacedLimit(MINIMUM, Reason.MINIMUM)
    return limit if most is None or most > limit.entries else PacedLimit(most, Reason.MAXIMUM)


def _unbounded_limit(pace: BatchPace, before: int) -> PacedLimit:
    if not pace.timed:
        return PacedLimit(before // SHARE, Reason.RESTART) if before else PacedLimit(FIRST, Reason.FIRST)
    last = pace.timed[-1]
    alike = [batch for batch in pace.timed if batch.entries >= _ALIKE * last.entries]
    by_rate = math.floor(min(_rate([last]), _rate(alike)) * pace.target)
    if last.is_first:
        by_rate = max(by_rate, last.entries // 2)
    by_growth = GROWTH * max(batch.entries for batch in pace.timed)
    return PacedLimit(by_growth, Reason.GROWTH) if by_growth < by_rate else PacedLimit(by_rate, Reason.RATE)


def _rate(batches: Sequence[TimedBatch]) -> float:
    """Return the entries per second of these batches together."""
    return sum(batch.entries for batch in batches) / sum(batch.seconds for batch in batches)
