"""What is known of a query: by its run between two triggers (RunState), and at the beginning of a trigger, once the
groups agree with the checkpoint (QueryState); and how many entries its triggers take (Admission)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from spark_streams.base.ids import MIN_ID, StreamId
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.source.group.snapshot import GroupState
from spark_streams.connector.source.group_client import GroupClient
from spark_streams.connector.source.offset import Offset, Range
from spark_streams.connector.source.partitioning import Part
from spark_streams.connector.source.pending.poison_record import CachedPoisonState
from spark_streams.connector.source.quota import BatchQuota
from spark_streams.connector.wire.xinfo import StreamState

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
        waits = options.min_entries_per_trigger, options.max_trigger_delay
        return cls(options.entries_per_partition, options.min_partitions, *waits, at_once=at_once)

    def end_of(self, stream: str, heads: Mapping[str, StreamState]) -> StreamState:
        """Return the end of a stream for this trigger or run; lower if the stream was created again since."""
        now = heads[stream]
        if self.until is None:
            return now
        until = self.until.get(stream, StreamState(MIN_ID, 0, 0, None))
        return until if until.last <= now.last else now

    def backlog(self, heads: Mapping[str, StreamState], groups: Mapping[str, GroupState]) -> Backlog:
        """Return what each group has yet to deliver."""
        counts = {stream: _backlog(self.end_of(stream, heads), group) for stream, group in groups.items()}
        return Backlog(self, heads, groups, {stream: entries for stream, entries in counts.items() if entries > 0})

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


@dataclass(frozen=True)
class Backlog:
    """What groups have yet to deliver, up to the ends of their streams."""

    admission: Admission
    heads: Mapping[str, StreamState]
    groups: Mapping[str, GroupState]
    entries: Mapping[str, int]  # per stream; streams with none are left out

    def wanted(self, quota: BatchQuota, turn: int) -> list[Range]:
        """Return what the quota admits: the first `count` entries of ranges that begin at the groups."""
        between = [
            Range(stream, self.groups[stream].last_delivered, self.admission.end_of(stream, self.heads).last, count)
            for stream, count in quota.divide(self.entries, turn).items()
        ]
        return [entries for entries in between if entries.count and not entries.is_empty]

    def is_large(self, quota: BatchQuota, least: int) -> bool:
        """Whether the quota admits at least so many entries, and the trigger waits for no more."""
        waiting, admitted = sum(self.entries.values()), sum(quota.within_stream_limits(self.entries).values())
        taken = admitted if quota.entries is None else min(admitted, quota.entries)
        return taken >= least and not self.admission.is_too_little(waiting)


def _backlog(head: StreamState, state: GroupState) -> int:
    """Return how many entries a group has yet to deliver. The server's counts can be wrong or unknown. So the position
    decides whether there are any, and `reserve` finds their end."""
    if state.last_delivered >= head.last:
        return 0
    counts = [] if state.lag is None else [state.lag]
    if head.added is not None and state.entries_read is not None:
        counts.append(head.added - state.entries_read)
    return min(counts) if counts and min(counts) > 0 else ENDLESS


Job = Callable[[GroupClient], object]  # for the background worker, which has a connection of its own


@dataclass(frozen=True)
class Reserved:
    parts: list[Part]  # in order per stream
    states: Mapping[str, GroupState]  # the groups of all requested streams after that
    # of the server after that, in milliseconds, for streams whose entries were delivered; 0 if the query is alone:
    # nobody else can hand entries over
    times: Mapping[str, int]


@dataclass(frozen=True)
class RunState:
    """What a run knows between two triggers. Each trigger replaces it. Whatever goes wrong replaces it by `unknown()`:
    then the next trigger asks the server, as after a restart."""

    is_known: bool = True  # False: nothing of the server
    heads: Mapping[str, StreamState] = field(default_factory=dict)  # the streams at the last trigger
    positions: Mapping[str, StreamId] = field(default_factory=dict)  # where this run has left the groups
    # the last offset that is or is being acknowledged (a job that fails makes the run `unknown()`, which drops it)
    acknowledged: Offset | None = None
    start: Offset | None = None  # the checkpoint with what this run knows better
    is_corrected: bool = False  # an offset must keep that (failOnDataLoss=false)
    # the highest XDEL in a shared group that was reported, per stream
    reported_deletions: Mapping[str, StreamId] = field(default_factory=dict)
    prefetched: Reserved | None = None  # what is reserved for the next batch
    poison: CachedPoisonState = field(default_factory=CachedPoisonState)  # the record of failed batches
    given: str = ""  # the last batch that this run has planned, if nothing was set aside then: its tasks were given it
    cut: str = ""  # the last batch that this run has planned, if its entries were set aside: its tasks were given none
    admission: Admission = field(default_factory=Admission)  # how much a trigger may take
    turn: int = 0  # counts triggers
    others_have_pending: bool = False  # other consumers of the groups have pending entries
    removes: bool = False  # committed entries leave some stream
    knows_fields: bool = False  # a batch of this run has been checked for columns that are fields of no entry

    def unknown(self) -> RunState:
        """Forget what a server can tell, and keep the rest: what was counted as lost is not counted again."""
        anew = replace(self, is_known=False, heads={}, positions={}, acknowledged=None, prefetched=None)
        return replace(anew, poison=CachedPoisonState(), others_have_pending=False)

    def has_acknowledged(self, offset: Offset) -> bool:
        """Whether the batch that ends at this offset, which may lack missing streams, is or is being acknowledged."""
        return self.acknowledged is not None and self.acknowledged.token == offset.token

    def start_of(self, checkpoint: Offset) -> Offset:
        """Return the checkpoint with what this run knows better."""
        return self.start if self.start is not None and self.start.token == checkpoint.token else checkpoint


@dataclass(frozen=True)
class QueryState:
    """The query at the beginning of a trigger."""

    # Spark's checkpoint, corrected, without streams that are no longer read, and with every stream of the trigger
    start: Offset
    heads: Mapping[str, StreamState]  # per stream
    groups: Mapping[str, GroupState]  # per stream
    is_acknowledged: bool  # the batch up to `start` is or is being acknowledged
    # until when their pending entries were delivered (StreamSnapshot.until)
    times: Mapping[str, int] = field(default_factory=dict)
    # entries that are pending for the query above its position, per stream
    above: Mapping[str, Sequence[Range]] = field(default_factory=dict)
    # how many old entries it has, per stream: those that are pending at or below its position, without the batch up to
    # `start`
    old: Mapping[str, int] = field(default_factory=dict)
    left: frozenset[str] = frozenset()  # streams that may have more of them
    run: RunState = field(default_factory=RunState)  # what the run knows now

    @property
    def has_others(self) -> bool:
        """Whether a group has consumers beside ours, or released entries."""
        return any(group.others or group.released for group in self.groups.values())


def positions_of(groups: Mapping[str, GroupState | None]) -> dict[str, StreamId]:
    return {stream: group.last_delivered for stream, group in groups.items() if group is not None}
