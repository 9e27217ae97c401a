"""How much a batch may take: entries and bytes, of all streams together and of each stream, and entries by time.

Bytes are a soft limit: the average size of the next entries, from a sample of each stream (maxBytesPerTrigger),
converts them into a number. The size of an entry is the bytes of its field names and values. Samples are read with
XRANGE, as tasks read entries, and need no further right. MEMORY USAGE covers more entries but also counts pending
entries, on some servers several times (docs/internals/facts.md, R122).

Time is a target, too (targetBatchTime). Spark asks for the batch that follows as soon as a batch is in its commit log
(docs/internals/facts.md, S4). So the time of a batch is the time from its trigger to the next call, with the pause of
a trigger interval (S100).

    run begins ── at most 1,000 ──> batch ──> rate × target ──> batch ──> rate × target …

The rate is the lower one of two: that of the last batch, and that of the batches of about its size among the last three
together. So one slow batch lowers the next limit at once, and one fast batch does not raise it alone. The first batch
of a run, in which Spark starts processes, lowers the limit to a half at most, and counts until there is another.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from spark_streams.base.ids import StreamId
from spark_streams.connector.keys import origin_of
from spark_streams.connector.options.parsers import PerStream
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.source.limits import LIMITS, Limits
from spark_streams.connector.source.partitioning import share
from spark_streams.connector.wire.connection import Server

_Command = tuple[str | bytes | int, ...]
_log = logging.getLogger("spark_streams.source")


def average_sizes(server: Server, after: Mapping[str, StreamId], limits: Limits = LIMITS) -> dict[str, float]:
    """Return the average bytes of each stream's entries above the given ID, at least 1, in two round trips. The size of
    the first entry decides how many more the sample has. If a stream has no further entry, its last one counts: entries
    below the ID may be claimed. Raises ServerReplyError or a subclass, ServerUnreachableError."""
    firsts = _sizes(server, {stream: _above(stream, position, 1) for stream, position in after.items()})
    limit = min(limits.sampled_entries, limits.sampled_at_once // max(1, len(after)))
    counts = {
        stream: min(limit, limits.sampled_bytes // max(1, sum(sizes))) for stream, sizes in firsts.items() if sizes
    }
    further = {stream: _above(stream, after[stream], count) for stream, count in counts.items() if count > 1}
    last: dict[str, _Command] = {
        stream: ("XREVRANGE", stream, "+", "-", "COUNT", 1) for stream, sizes in firsts.items() if not sizes
    }
    samples = firsts | _sizes(server, further | last)
    return {stream: max(1.0, sum(sizes) / max(1, len(sizes))) for stream, sizes in samples.items()}


def _above(stream: str, position: StreamId, count: int) -> _Command:
    return ("XRANGE", stream, b"(" + bytes(position), "+", "COUNT", count)


def _sizes(server: Server, commands: Mapping[str, _Command]) -> dict[str, list[int]]:
    replies = server.execute_each(list(commands.values()))
    return {
        stream: [sum(map(len, fields)) for _, fields in reply] for stream, reply in zip(commands, replies, strict=True)
    }


@dataclass(frozen=True)
class BatchQuota:
    """What a batch may still take. Returned entries have their first stream's limit, but count separately."""

    entries: int | None  # of all streams; None: unlimited
    of_stream: PerStream[int | None]  # of each stream, from which `taken` is not subtracted yet
    size: float | None  # bytes; None: unlimited, 0 or less: no further entry
    # average bytes of an entry of each stream, if bytes are limited
    sizes: Mapping[str, float] = field(default_factory=dict)
    taken: Mapping[str, int] = field(default_factory=dict)  # entries that the batch has of each stream

    @classmethod
    def from_options(cls, options: SourceOptions) -> BatchQuota:
        """Return the quota of a query's batch. Each trigger sets the number of entries of all streams."""
        limits = options.max_entries_per_trigger
        # Spark passes a single number for all streams to each trigger.
        of_stream = limits if limits.named else PerStream[int | None](None, {})
        return cls(None, of_stream, options.max_bytes_per_trigger)

    @property
    def is_full(self) -> bool:
        """Whether the batch may take no further entry of any stream."""
        return (self.entries is not None and self.entries <= 0) or (self.size is not None and self.size <= 0)

    def without(self, taken: Mapping[str, int]) -> BatchQuota:
        """Return the quota after this number of entries of each stream."""
        if not taken:
            return self
        entries = None if self.entries is None else max(0, self.entries - sum(taken.values()))
        size = self.size
        if size is not None:
            size -= sum(count * self.sizes[stream] for stream, count in taken.items())
        return replace(self, entries=entries, size=size, taken=Counter(self.taken) + Counter(taken))

    def with_entries(self, entries: int | None) -> BatchQuota:
        return replace(self, entries=entries)

    def within_stream_limits(self, backlog: Mapping[str, int]) -> Mapping[str, int]:
        """Return how many entries of each stream's backlog the limits of single streams admit."""
        if self.of_stream.otherwise is None and not self.of_stream.named:
            return backlog
        admitted: dict[str, int] = {}
        for stream, waiting in backlog.items():
            limit = self._stream_limit(stream)
            admitted[stream] = waiting if limit is None else min(waiting, limit)
        return admitted

    def _stream_limit(self, stream: str) -> int | None:
        limit = self.of_stream.value_for(origin_of(stream))
        return None if limit is None else max(0, limit - self.taken.get(stream, 0))

    def limit_of(self, stream: str) -> int | None:
        """Return how many entries of a single stream the batch may take; None: unlimited."""
        limits = (self.entries, self._stream_limit(stream), self.fitting(stream))
        return min((limit for limit in limits if limit is not None), default=None)

    def fitting(self, stream: str) -> int | None:
        """Return how many entries of a stream have the remaining bytes, which the last may exceed; None: unlimited."""
        if self.size is None:
            return None
        return math.ceil(self.size / self.sizes[stream]) if self.size > 0 else 0

    def divide(self, backlog: Mapping[str, int], turn: int) -> Mapping[str, int]:
        """Return how many entries of each stream's backlog to take. turn: see `share`."""
        admitted = self.within_stream_limits(backlog)
        allowed = admitted if self.entries is None else share(self.entries, admitted, turn)
        if self.size is None:
            return allowed
        return self._within_bytes({stream: count for stream, count in allowed.items() if count}, self.size, turn)

    def _within_bytes(self, allowed: Mapping[str, int], remaining: float, turn: int) -> dict[str, int]:
        """Return how many of these entries fit. Each stream has a share of the bytes, which its last entry may exceed.
        If no bytes remain for the streams behind it, they wait: streams take turns at being first."""
        needed = {stream: math.ceil(count * self.sizes[stream]) for stream, count in allowed.items()}
        shares = share(math.ceil(remaining), needed, turn)
        first = turn % max(1, len(shares))
        fitting: dict[str, int] = {}
        for stream in [*sorted(shares)[first:], *sorted(shares)[:first]]:
            if remaining <= 0:
                break
            fitting[stream] = min(allowed[stream], max(1, math.ceil(shares[stream] / self.sizes[stream])))
            remaining -= fitting[stream] * self.sizes[stream]
        return fitting


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
class BatchPace:
    """What a run knows of the time of its batches."""

    target: float  # seconds of a batch
    timed: tuple[TimedBatch, ...] = ()  # the last batches, the newest last
    running: tuple[int, float] | None = None  # entries of the batch that Spark runs, and when its trigger began
    limit: int | None = None  # the most entries of the last batch, of all streams together

    def called(self, now: float) -> BatchPace:
        """Return the pace when Spark asks for the next batch: the batch that was running has ended."""
        entries, began = self.running or (0, now)
        if not entries:
            return replace(self, running=None)
        ended = TimedBatch(entries, max(_SHORTEST, now - began), is_first=not self.timed)
        warm = [earlier for earlier in self.timed if not earlier.is_first]
        return replace(self, timed=(*warm, ended)[-_WINDOW:], running=None)

    def limited(self, before: int, most: int | None) -> BatchPace:
        """Return the pace with the next limit. before: entries of the checkpoint's batch; most: the option."""
        by_time = self._by_rate() if self.timed else min(FIRST, before or FIRST)
        limit = max(MINIMUM, by_time)
        return replace(self, limit=limit if most is None else min(limit, most))

    def planned(self, entries: int, began: float) -> BatchPace:
        """Return the pace after a batch was planned. began: when its trigger began."""
        return replace(self, running=(entries, began))

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
        return {} if self.limit is None else {"limit": self.limit}

    def _by_rate(self) -> int:
        last = self.timed[-1]
        alike = [batch for batch in self.timed if batch.entries >= _ALIKE * last.entries]
        by_rate = math.floor(min(_rate([last]), _rate(alike)) * self.target)
        if last.is_first:
            by_rate = max(by_rate, last.entries // 2)
        return min(by_rate, GROWTH * max(batch.entries for batch in self.timed))


class Pacing:
    """The pace of the batches of one run. target: milliseconds (targetBatchTime), None: nothing is limited."""

    def __init__(self, target: int | None, now: Callable[[], float]) -> None:
        self._pace = None if target is None else BatchPace(target / 1000)
        self._now = now
        self._began = 0.0  # the last trigger
        self._has_warned = False  # that batches do not take the target

    def called(self) -> None:
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
        if self._pace is not None:
            self._pace = self._pace.planned(entries, self._began)

    def to_json(self) -> dict[str, int]:
        return {} if self._pace is None else self._pace.to_json()


def _rate(batches: Sequence[TimedBatch]) -> float:
    return sum(batch.entries for batch in batches) / sum(batch.seconds for batch in batches)
