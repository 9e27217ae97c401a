"""Admission: how many entries a trigger may take, whether it waits for more, how large a task is. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from spark_streams.base.ids import MIN_ID
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.source.group.state import GroupState
from spark_streams.connector.wire.replies.xinfo import StreamState

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
