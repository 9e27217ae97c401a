"""How many entries and bytes a batch may still take: of all streams together, and of each stream.

Bytes are a soft limit. The average size of a sample of entries converts them into a number (source.sampled_size).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from spark_streams.model.ids import StreamId
from spark_streams.model.keys import origin_of
from spark_streams.options.per_stream import PerStream
from spark_streams.options.source_options import SourceOptions
from spark_streams.source.entry_range import EntryRange, entries_per_stream
from spark_streams.source.limits import Limits
from spark_streams.source.partitioning import share
from spark_streams.source.sampled_size import SampledSize, sampled_sizes
from spark_streams.wire.connection.server import Server

# Takes up to this number of entries of each stream, above these IDs, and returns their ranges.
Take = Callable[[Mapping[str, int], Mapping[str, StreamId]], list[EntryRange]]


@dataclass(frozen=True)
class BatchQuota:
    """What a batch may still take.

    entries: of all streams, None: unlimited; of_stream: of each stream, from which `taken` is not subtracted yet;
    size: bytes, None: unlimited, 0 or less: no further
    entry; taken: entries that the batch has of each stream. Entries that are returned for a retry have the limit of
    their first stream, but count separately.
    """

    entries: int | None
    of_stream: PerStream[int | None]
    size: float | None
    taken: Mapping[str, int] = field(default_factory=dict)

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

    def without(self, taken: Mapping[str, int], sizes: Mapping[str, SampledSize] | None = None) -> BatchQuota:
        """Return the quota after this number of entries of each stream. sizes: of these entries; None: their bytes are
        not subtracted."""
        if not taken:
            return self
        entries = None if self.entries is None else max(0, self.entries - sum(taken.values()))
        size = self.size
        if size is not None and sizes is not None:
            size -= sum(count * sizes[stream].average for stream, count in taken.items())
        return replace(self, entries=entries, size=size, taken=Counter(self.taken) + Counter(taken))

    def with_entries(self, entries: int | None) -> BatchQuota:
        """Return this quota with another number of entries of all streams."""
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
        limits = (self.entries, self._stream_limit(stream))
        return min((limit for limit in limits if limit is not None), default=None)

    def divide(
        self, backlog: Mapping[str, int], turn: int, sizes: Mapping[str, SampledSize] | None = None
    ) -> Mapping[str, int]:
        """Return how many entries of each stream's backlog to take. turn: see `share`; sizes: of the entries in the
        backlog; None: bytes do not count."""
        admitted = self.within_stream_limits(backlog)
        allowed = admitted if self.entries is None else share(self.entries, admitted, turn)
        if self.size is None or sizes is None:
            return allowed
        return self._fitting({stream: count for stream, count in allowed.items() if count}, turn, sizes)

    def _fitting(self, allowed: Mapping[str, int], turn: int, sizes: Mapping[str, SampledSize]) -> dict[str, int]:
        """Return how many of these entries fit. Each stream has a share of the bytes, which its last entry may exceed.
        If no bytes remain for the streams behind it, they wait: streams take turns at being first."""
        remaining = self.size or 0
        needed = {stream: math.ceil(count * sizes[stream].average) for stream, count in allowed.items()}
        shares = share(math.ceil(remaining), needed, turn)
        first = turn % max(1, len(shares))
        fitting: dict[str, int] = {}
        for stream in [*sorted(shares)[first:], *sorted(shares)[:first]]:
            if remaining <= 0:
                break
            fitting[stream] = min(allowed[stream], sizes[stream].fitting(shares[stream]))
            remaining -= fitting[stream] * sizes[stream].average
        return fitting


def take_in_parts(
    server: Server,
    quota: BatchQuota,
    backlog: Mapping[str, int],
    after: Mapping[str, StreamId],
    turn: int,
    take: Take,
    limits: Limits,
) -> tuple[list[EntryRange], BatchQuota]:
    """Take what the quota admits of each stream's backlog above these IDs. Return the ranges and the remaining quota.

    If bytes are limited, each part begins with a sample of its sizes and is at most as large as that sample can
    represent: the batch ends soon after entries become larger. Raises as `take` and `sampled_sizes` do.
    """
    if quota.size is None:
        ranges = take(quota.divide(backlog, turn), after)
        return ranges, quota.without(entries_per_stream(ranges))
    all_ranges: list[EntryRange] = []
    sizes: Mapping[str, SampledSize] = {}
    while backlog and not quota.is_full:
        sizes = sampled_sizes(server, {stream: after[stream] for stream in backlog}, limits, sizes)
        allowed = quota.divide(backlog, turn, sizes)
        if not allowed:
            break
        ranges = take(allowed, after)
        all_ranges += ranges
        taken = entries_per_stream(ranges)
        quota = quota.without(taken, sizes)
        after = {**after, **{entries.stream: entries.last for entries in ranges}}
        # If a stream had fewer entries than allowed, it is at its end or other consumers read it: no further part.
        backlog = {s: n - taken[s] for s, n in backlog.items() if n > taken[s] >= allowed.get(s, 0)}
    return all_ranges, quota
