"""What a batch may still take: entries of all streams together, of each one, and bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from spark_streams.keys import origin_of
from spark_streams.options.per_stream import PerStream
from spark_streams.options.source_options import SourceOptions
from spark_streams.source.limits import Limits
from spark_streams.source.membership import Membership
from spark_streams.source.partitioning import share
from spark_streams.source.weigh import Budget, Scales


@dataclass(frozen=True)
class Room:
    """entries: of all streams, None: any number; of_stream: of each, without what is taken already; weights: how
    `entries` and bytes are shared; budget: of bytes, None: any number. What has come back for another try has the limit
    and the weight of the stream that it came from, by itself."""

    entries: int | None
    of_stream: PerStream[int | None]
    weights: PerStream[int]
    budget: Budget | None
    taken: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_full(self) -> bool:
        """Whether no entry of any stream has room."""
        return (self.entries is not None and self.entries <= 0) or (self.budget is not None and self.budget.is_spent)

    def without(self, taken: Mapping[str, int]) -> Room:
        """What is left when so many entries of each stream are taken; the budget is told of bytes by who takes them."""
        entries = None if self.entries is None else max(0, self.entries - sum(taken.values()))
        return replace(self, entries=entries, taken=Counter(self.taken) + Counter(taken)) if taken else self

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
        most = self.of_stream.of(origin_of(stream))
        return None if most is None else max(0, most - self.taken.get(stream, 0))

    def of(self, stream: str) -> int | None:
        """How many entries of a stream that has more than enough; None: any number."""
        return min((most for most in (self.entries, self._cap(stream)) if most is not None), default=None)

    def shares(self, backlog: Mapping[str, int], turn: int) -> Mapping[str, int]:
        """How many entries of each stream to take, of so many that wait; bytes do not count yet. turn: see `share`."""
        there = self.open_to(backlog)
        return there if self.entries is None else share(self.entries, there, turn, self.weight)

    def weight(self, stream: str) -> int:
        """How `entries` and bytes are shared."""
        return self.weights.of(origin_of(stream))


class Rooms:
    """The rooms of one query's batches."""

    def __init__(self, options: SourceOptions, member: Membership, limits: Limits) -> None:
        most = options.max_entries_per_trigger
        # One number for all is what Spark hands to each trigger.
        self._of_stream = most if most.named else PerStream[int | None](None, {})
        self._weights = options.stream_weights
        self._bytes = options.max_bytes_per_trigger
        self._scales = None if self._bytes is None else Scales(options.address, member, limits)

    def of(self, most: int | None) -> Room:
        """A batch of at most so many entries."""
        budget = None if self._scales is None or self._bytes is None else Budget(self._scales, self._bytes)
        return Room(most, self._of_stream, self._weights, budget)

    def close(self) -> None:
        """Close the connection that weighs entries."""
        if self._scales is not None:
            self._scales.close()
