"""What a batch may still take: entries of all streams together, of each one, and bytes.

Bytes are a soft limit: they become a number of entries by the average size of a sample of them (source.sampled_size).
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
from spark_streams.source.entry_range import EntryRange, per_stream
from spark_streams.source.limits import Limits
from spark_streams.source.partitioning import share
from spark_streams.source.sampled_size import SampledSize, sampled_sizes
from spark_streams.wire.connection.server import Server

# Takes so many entries of each stream, those behind these IDs, and returns their ranges.
Take = Callable[[Mapping[str, int], Mapping[str, StreamId]], list[EntryRange]]


@dataclass(frozen=True)
class Room:
    """entries: of all streams, None: any number; of_stream: of each, without what is taken already; weights: how
    `entries` and `size` are shared; size: bytes by average sizes, None: any number, 0 or less: no further entry. What
    has come back for another try has the limit and the weight of the stream that it came from, by itself."""

    entries: int | None
    of_stream: PerStream[int | None]
    weights: PerStream[int]
    size: float | None
    taken: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of_options(cls, options: SourceOptions) -> Room:
        """Return the room of a query's batch. The number of entries of all streams comes with each trigger."""
        most = options.max_entries_per_trigger
        # One number for all is what Spark hands to each trigger.
        of_stream = most if most.named else PerStream[int | None](None, {})
        return cls(None, of_stream, options.stream_weights, options.max_bytes_per_trigger)

    @property
    def is_full(self) -> bool:
        """Whether no entry of any stream has room."""
        return (self.entries is not None and self.entries <= 0) or (self.size is not None and self.size <= 0)

    def without(self, taken: Mapping[str, int], sizes: Mapping[str, SampledSize] | None = None) -> Room:
        """What is left when so many entries of each stream are taken. sizes: theirs; None: their bytes do not count, or
        are counted elsewhere."""
        if not taken:
            return self
        entries = None if self.entries is None else max(0, self.entries - sum(taken.values()))
        size = self.size
        if size is not None and sizes is not None:
            size -= sum(count * sizes[stream].average for stream, count in taken.items())
        return replace(self, entries=entries, size=size, taken=Counter(self.taken) + Counter(taken))

    def at_most(self, entries: int | None) -> Room:
        """The same, with no more than so many entries."""
        return replace(self, entries=entries)

    def open_to(self, backlog: Mapping[str, int]) -> Mapping[str, int]:
        """How many entries of each stream have room as far as the stream goes, of so many that wait."""
        if self.of_stream.otherwise is None and not self.of_stream.named:
            return backlog
        found: dict[str, int] = {}
        for stream, waiting in backlog.items():
            most = self._cap(stream)
            found[stream] = waiting if most is None else min(waiting, most)
        return found

    def _cap(self, stream: str) -> int | None:
        most = self.of_stream.value_for(origin_of(stream))
        return None if most is None else max(0, most - self.taken.get(stream, 0))

    def of(self, stream: str) -> int | None:
        """How many entries of a stream that has more than enough; None: any number."""
        return min((most for most in (self.entries, self._cap(stream)) if most is not None), default=None)

    def shares(
        self, backlog: Mapping[str, int], turn: int, sizes: Mapping[str, SampledSize] | None = None
    ) -> Mapping[str, int]:
        """How many entries of each stream to take, of so many that wait. turn: see `share`; sizes: of the entries that
        wait; None: bytes do not count."""
        there = self.open_to(backlog)
        allowed = there if self.entries is None else share(self.entries, there, turn, self.weight)
        if self.size is None or sizes is None:
            return allowed
        return self._fitting({stream: count for stream, count in allowed.items() if count}, turn, sizes)

    def _fitting(self, wanted: Mapping[str, int], turn: int, sizes: Mapping[str, SampledSize]) -> dict[str, int]:
        """How many of these entries fit. Each stream has its part of the bytes, which its last entry may exceed. If
        that leaves nothing for the streams behind it, these wait: streams take turns at being first."""
        left = self.size or 0
        whole = {stream: math.ceil(count * sizes[stream].average) for stream, count in wanted.items()}
        parts = share(math.ceil(left), whole, turn, self.weight)
        first = turn % max(1, len(parts))
        found: dict[str, int] = {}
        for stream in [*sorted(parts)[first:], *sorted(parts)[:first]]:
            if left <= 0:
                break
            found[stream] = min(wanted[stream], sizes[stream].fitting(parts[stream]))
            left -= found[stream] * sizes[stream].average
        return found

    def weight(self, stream: str) -> int:
        """How `entries` and bytes are shared."""
        return self.weights.value_for(origin_of(stream))


def take_in_parts(
    server: Server,
    room: Room,
    waiting: Mapping[str, int],
    after: Mapping[str, StreamId],
    turn: int,
    take: Take,
    limits: Limits,
) -> tuple[list[EntryRange], Room]:
    """Take what there is room for, of so many entries that wait behind these IDs: the ranges, and the room that they
    leave.

    If bytes are limited, each part that is taken has a sample of its sizes in front, and is no larger than that sample
    may speak for: the batch ends soon after entries have become larger. Raises as `take` and `sampled_sizes` do.
    """
    if room.size is None:
        ranges = take(room.shares(waiting, turn), after)
        return ranges, room.without(per_stream(ranges))
    found: list[EntryRange] = []
    sizes: Mapping[str, SampledSize] = {}
    while waiting and not room.is_full:
        sizes = sampled_sizes(server, {stream: after[stream] for stream in waiting}, limits, sizes)
        wanted = room.shares(waiting, turn, sizes)
        if not wanted:
            break
        ranges = take(wanted, after)
        found += ranges
        taken = per_stream(ranges)
        room = room.without(taken, sizes)
        after = {**after, **{entries.stream: entries.last for entries in ranges}}
        # A stream that had less than it was asked for is at its end, or others read from it: no further part of it.
        waiting = {s: n - taken[s] for s, n in waiting.items() if n > taken[s] >= wanted.get(s, 0)}
    return found, room
