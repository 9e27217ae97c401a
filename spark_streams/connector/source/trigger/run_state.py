"""What is known of a query: by its run between two triggers (RunState), and at the beginning of a trigger, once the
groups agree with the checkpoint (QueryState)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from spark_streams.base.ids import StreamId
from spark_streams.connector.source.group.snapshot import GroupState
from spark_streams.connector.source.group_client import GroupClient
from spark_streams.connector.source.offset import Offset, Range
from spark_streams.connector.source.partitioning import Part
from spark_streams.connector.source.pending.poison_record import CachedPoisonState
from spark_streams.connector.source.trigger.admission import Admission
from spark_streams.connector.wire.replies.xinfo import StreamState

Job = Callable[[GroupClient], object]  # for the background worker, which has a connection of its own


@dataclass(frozen=True)
class Reserved:
    """Reserved entries. parts: in order per stream; states: the groups of all requested streams after that; times: of
    the server after that, in milliseconds, for streams whose entries were delivered; 0 if the query is alone: nobody
    else can hand entries over."""

    parts: list[Part]
    states: Mapping[str, GroupState]
    times: Mapping[str, int]


@dataclass(frozen=True)
class RunState:
    """What a run knows between two triggers. Each trigger replaces it. Whatever goes wrong replaces it by `unknown()`:
    then the next trigger asks the server, as after a restart.

    heads: the streams at the last trigger; positions: where this run has left the groups; settled: the last offset
    that is or is being acknowledged (a job that fails makes the run `unknown()`, which drops it); start: the
    checkpoint with what this run knows better; is_corrected: an offset must keep that (failOnDataLoss=false);
    reported_deletions: per stream, the highest XDEL in a shared group that was reported; prefetched: what is reserved
    for the next batch; others_have_pending: other consumers of the groups have pending entries; removes: committed
    entries leave some stream; knows_fields: a batch of this run has been checked for columns that are fields of no
    entry."""

    is_known: bool = True
    heads: Mapping[str, StreamState] = field(default_factory=dict)
    positions: Mapping[str, StreamId] = field(default_factory=dict)
    settled: Offset | None = None
    start: Offset | None = None
    is_corrected: bool = False
    reported_deletions: Mapping[str, StreamId] = field(default_factory=dict)
    prefetched: Reserved | None = None
    poison: CachedPoisonState = field(default_factory=CachedPoisonState)
    admission: Admission = field(default_factory=Admission)
    turn: int = 0
    others_have_pending: bool = False
    removes: bool = False
    knows_fields: bool = False

    def unknown(self) -> RunState:
        """The run knows nothing of the server any more. It keeps what no server can tell: what was counted as lost is
        not counted again."""
        return RunState(
            False,
            start=self.start,
            is_corrected=self.is_corrected,
            reported_deletions=self.reported_deletions,
            admission=self.admission,
            turn=self.turn,
            removes=self.removes,
            knows_fields=self.knows_fields,
        )

    def has_settled(self, offset: Offset) -> bool:
        """Whether the batch that ends at this offset is or is being acknowledged. The offset may lack streams that no
        longer exist."""
        return self.settled is not None and self.settled.token == offset.token

    def start_of(self, checkpoint: Offset) -> Offset:
        """Return the checkpoint with what this run knows better."""
        return self.start if self.start is not None and self.start.token == checkpoint.token else checkpoint


@dataclass(frozen=True)
class QueryState:
    """The query at the beginning of a trigger.

    start: Spark's checkpoint, corrected, without streams that are no longer read, and with every stream of the
    trigger; heads, groups: per stream; is_settled: the batch up to `start` is or is being acknowledged; times: until
    when their pending entries were delivered (Look.until); above: entries that are pending for the query above its
    position, per stream; old: how many old entries it has, per stream: those that are pending at or below its position,
    without the batch up to `start`; left: streams that may have more of them; run: what the run knows now."""

    start: Offset
    heads: Mapping[str, StreamState]
    groups: Mapping[str, GroupState]
    is_settled: bool
    times: Mapping[str, int] = field(default_factory=dict)
    above: Mapping[str, list[Range]] = field(default_factory=dict)
    old: Mapping[str, int] = field(default_factory=dict)
    left: frozenset[str] = frozenset()
    run: RunState = field(default_factory=RunState)

    @property
    def has_others(self) -> bool:
        """Whether a group has consumers beside ours, or released entries."""
        return any(group.others or group.released for group in self.groups.values())


def positions_of(groups: Mapping[str, GroupState | None]) -> dict[str, StreamId]:
    """Return where each group is."""
    return {stream: group.last_delivered for stream, group in groups.items() if group is not None}
