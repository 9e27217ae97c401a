"""The query at the beginning of a trigger, once the groups agree with the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_streams.model.ids import StreamId
from spark_streams.source.group.state import GroupState
from spark_streams.source.offset import Offset
from spark_streams.source.range import Range
from spark_streams.source.trigger.run_state import RunState
from spark_streams.wire.replies.xinfo import StreamState


@dataclass(frozen=True)
class QueryState:
    """The query at the beginning of a trigger.

    start: Spark's checkpoint, corrected, without streams that are no longer read, and with every stream of the
    trigger; heads, groups: per stream; is_settled: the batch up to `start` is or is being acknowledged; times: of the
    looks, in milliseconds of the server's clock; above: entries that are pending for the query above its position, per
    stream; second: how many entries are pending for it besides those and the batch up to `start`, per stream; run: what
    the run knows now."""

    start: Offset
    heads: Mapping[str, StreamState]
    groups: Mapping[str, GroupState]
    is_settled: bool
    times: Mapping[str, int] = field(default_factory=dict)
    above: Mapping[str, list[Range]] = field(default_factory=dict)
    second: Mapping[str, int] = field(default_factory=dict)
    run: RunState = field(default_factory=RunState)

    @property
    def has_others(self) -> bool:
        """Whether a group has consumers beside ours, or released entries."""
        return any(group.others or group.released for group in self.groups.values())


def positions_of(groups: Mapping[str, GroupState | None]) -> dict[str, StreamId]:
    """Return where each group is."""
    return {stream: group.last_delivered for stream, group in groups.items() if group is not None}
