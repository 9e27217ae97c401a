"""How many entries a trigger may take, whether it waits for more, how large a task is. Pure: counts in, counts out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from spark_streams.ids import MIN_ID
from spark_streams.options.source_options import SourceOptions
from spark_streams.source.group.group_state import GroupState
from spark_streams.wire.xinfo import StreamState

ENDLESS = 1 << 62  # a backlog that the server cannot count


class Admission:
    """now: seconds that only go up; until: where an AvailableNow run ends, per stream."""

    def __init__(self, options: SourceOptions, now: Callable[[], float], first_at_once: bool = False) -> None:
        self._options = options
        self._now = now
        self._waiting_since: float | None = None  # fewer than minEntriesPerTrigger are there
        self._at_once = first_at_once
        self.until: Mapping[str, StreamState] | None = None

    def end_of(self, stream: str, heads: Mapping[str, StreamState]) -> StreamState:
        """Where this trigger, or an AvailableNow run, may go on a stream. A stream that was created again since the run
        began may end lower."""
        now = heads[stream]
        if self.until is None:
            return now
        until = self.until.get(stream, StreamState(MIN_ID, 0, 0, None))
        return until if until.last <= now.last else now

    def backlog(self, heads: Mapping[str, StreamState], states: Mapping[str, GroupState]) -> dict[str, int]:
        """How many entries each group has yet to deliver, up to where it may go; streams with none are left out."""
        found = {stream: _backlog(self.end_of(stream, heads), state) for stream, state in states.items()}
        return {stream: entries for stream, entries in found.items() if entries > 0}

    def should_wait(self, backlog: int) -> bool:
        """minEntriesPerTrigger: whether the entries that are there are held back for more to come."""
        if not self.is_too_little(backlog):
            return False
        if self._waiting_since is None:
            self._waiting_since = self._now()
        delay = self._options.max_trigger_delay
        return (self._now() - self._waiting_since) * 1000 < delay

    def seconds_until_due(self) -> float:
        """How long entries may still be held back for more to come; inf if none are."""
        if self._waiting_since is None:
            return math.inf
        delay = self._options.max_trigger_delay
        return self._waiting_since + delay / 1000 - self._now()

    def is_too_little(self, backlog: int) -> bool:
        """Whether there are fewer than minEntriesPerTrigger."""
        least = self._options.min_entries_per_trigger
        return least is not None and backlog < least and self.until is None and not self._at_once

    def looked(self) -> None:
        """A trigger is over."""
        self._at_once = False

    def made(self) -> None:
        """A batch was made: the next wait begins anew."""
        self._waiting_since = None

    def size(self, counts: Sequence[int]) -> int:
        """How many entries a task reads: entriesPerPartition, less where minPartitions asks for more tasks."""
        size = self._options.entries_per_partition
        least = self._options.min_partitions
        known = sum(count for count in counts if count < ENDLESS)
        return size if least is None or known == 0 else max(1, min(size, -(-known // least)))


def _backlog(head: StreamState, state: GroupState) -> int:
    """The server's counts can be wrong (XGROUP … ENTRIESREAD) or unknown: while the position says that there is more,
    there is, and `reserve` finds its end."""
    if state.last_delivered >= head.last:
        return 0
    counts = [] if state.lag is None else [state.lag]
    if head.added is not None and state.entries_read is not None:
        counts.append(head.added - state.entries_read)
    return min(counts) if counts and min(counts) > 0 else ENDLESS
