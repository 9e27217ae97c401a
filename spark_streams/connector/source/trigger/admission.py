"""Admission: how many entries a trigger may take, whether it waits for more, how large a task is, and how long a batch
may take (targetBatchTime). Pure, but for the clock and the log of `Pacing`.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from spark_streams.base.ids import MIN_ID
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.source.group.snapshot import GroupState
from spark_streams.connector.wire.xinfo import StreamState

_log = logging.getLogger("spark_streams.source")


ENDLESS = 1 << 62  # a backlog that the server cannot count


@dataclass(frozen=True)
class Admission:
    """How much a trigger takes, and whether it waits for more. The first four are options."""

    entries_per_partition: int = 1
    min_partitions: int | None = None
    min_entries: int | None = None
    max_delay: int = 0  # milliseconds
    until: Mapping[str, StreamState] | None = None  # where an AvailableNow run ends, per stream
    waiting_since: float | None = None  # when there were fewer than min_entries: a monotonic clock, in seconds
    at_once: bool = False  # the next trigger waits for no more

    @classmethod
    def of_options(cls, options: SourceOptions, at_once: bool) -> Admission:
        """Return the admission of a query that begins."""
        waits = options.min_entries_per_trigger, options.max_trigger_delay
        return cls(options.entries_per_partition, options.min_partitions, *waits, at_once=at_once)

    def end_of(self, stream: str, heads: Mapping[str, StreamState]) -> StreamState:
        """Return the end of a stream for this trigger or AvailableNow run. A stream that was created again since the
        run began may end lower."""
        now = heads[stream]
        if self.until is None:
            return now
        until = self.until.get(stream, StreamState(MIN_ID, 0, 0, None))
        return until if until.last <= now.last else now

    def backlog(self, heads: Mapping[str, StreamState], states: Mapping[str, GroupState]) -> dict[str, int]:
        """Return how many entries each group has yet to deliver, up to the stream's end; streams with none are left
        out."""
        entries_by_stream = {stream: _backlog(self.end_of(stream, heads), state) for stream, state in states.items()}
        return {stream: entries for stream, entries in entries_by_stream.items() if entries > 0}

    def held_back(self, backlog: int, now: float) -> tuple[bool, Admission]:
        """Return whether the trigger waits for more entries (minEntriesPerTrigger), and the new admission."""
        if not self.is_too_little(backlog):
            return False, self
        since = now if self.waiting_since is None else self.waiting_since
        return (now - since) * 1000 < self.max_delay, replace(self, waiting_since=since)

    def seconds_until_due(self, now: float) -> float:
        """Return how long the trigger may still wait for more entries; inf if it does not wait."""
        return math.inf if self.waiting_since is None else self.waiting_since + self.max_delay / 1000 - now

    def is_too_little(self, backlog: int) -> bool:
        """Whether there are fewer than min_entries."""
        min_entries = self.min_entries
        return min_entries is not None and backlog < min_entries and self.until is None and not self.at_once

    def after_trigger(self, is_made: bool) -> Admission:
        """Return the admission after a trigger. If a batch was made, the next wait starts from zero."""
        return replace(self, at_once=False, waiting_since=None if is_made else self.waiting_since)

    def size(self, counts: Sequence[int]) -> int:
        """Return how many entries a task reads: entriesPerPartition, or fewer if minPartitions requires more tasks."""
        size, min_partitions = self.entries_per_partition, self.min_partitions
        known_entries = sum(count for count in counts if count < ENDLESS)
        return (
            size
            if min_partitions is None or known_entries == 0
            else max(1, min(size, -(-known_entries // min_partitions)))
        )


def _backlog(head: StreamState, state: GroupState) -> int:
    """Return how many entries a group has yet to deliver. The server's counts can be wrong (XGROUP … ENTRIESREAD) or
    unknown. So the position decides whether there are any, and `reserve` finds their end."""
    if state.last_delivered >= head.last:
        return 0
    counts = [] if state.lag is None else [state.lag]
    if head.added is not None and state.entries_read is not None:
        counts.append(head.added - state.entries_read)
    return min(counts) if counts and min(counts) > 0 else ENDLESS


FIRST = 1_000  # most entries of the first batch of a run
GROWTH = 10  # a limit is at most this many times the largest of the last batches
MINIMUM = 100  # entries; if a batch of so few takes too long, its time is not that of its entries
_WINDOW = 3  # batches
_ALIKE = 0.75  # of the entries of the last batch: batches of about its size have at least so many
_SHORTEST = 0.001  # seconds
_TOO_LONG = 1.5  # times the target


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
    """What a run knows of the time of its batches."""

    target: float  # seconds of a batch
    timed: tuple[TimedBatch, ...] = ()  # the last batches, the newest last
    running: RunningBatch | None = None  # the batch that Spark runs
    limit: int | None = None  # the most entries of the last batch, of all streams together

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
