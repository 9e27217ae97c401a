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
from spark_streams.connector.wire.xinfo import StreamState

Job = Callable[[GroupClient], object]  # for the background worker, which has a connection of its own


@dataclass(frozen=True)
class Reserved:
    """Reserved entries."""

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
    admission: Admission = field(default_factory=Admission)  # how much a trigger may take
    turn: int = 0  # counts triggers
    others_have_pending: bool = False  # other consumers of the groups have pending entries
    removes: bool = False  # committed entries leave some stream
    knows_fields: bool = False  # a batch of this run has been checked for columns that are fields of no entry

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

    def has_acknowledged(self, offset: Offset) -> bool:
        """Whether the batch that ends at this offset is or is being acknowledged. The offset may lack streams that no
        longer exist."""
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
    above: Mapping[str, list[Range]] = field(default_factory=dict)
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
    """Return where each group is."""
    return {stream: group.last_delivered for stream, group in groups.items() if group is not None}
