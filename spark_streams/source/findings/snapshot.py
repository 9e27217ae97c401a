"""Values that the driver compares with the checkpoint: streams, groups and what the run knows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from spark_streams.model.commit_mark import Mark
from spark_streams.model.ids import MIN_ID, StreamId
from spark_streams.source.findings.group_state import GroupState
from spark_streams.source.membership import Membership
from spark_streams.source.offset import Count
from spark_streams.wire.replies.xinfo import StreamState


@dataclass(frozen=True)
class Snapshot:
    """The streams, their groups and the query's commit marks at one moment. groups: None if there is no group."""

    heads: Mapping[str, StreamState]
    groups: Mapping[str, GroupState | None]
    marks: Mapping[str, Mark] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """What the run of the query knows beside the snapshot."""

    member: Membership
    counts: Mapping[str, Count]  # of each stream, at its group's position; at first those of the checkpoint
    reserved: Collection[str] = ()  # streams with entries that are reserved above the checkpoint
    bookmarks: Mapping[str, StreamId] | None = None  # with noAck, the positions that this run has set; otherwise None
    by_pattern: bool = False  # the query reads the streams that match a pattern


class Ask(Enum):
    """What a question asks for."""

    ENTRIES_UP_TO = auto()  # how many entries the stream has ever had up to a position
    PENDING = auto()  # what is pending for the consumers of the group


class Question(NamedTuple):
    """A question of the diagnosis that the snapshot does not answer."""

    stream: str
    ask: Ask
    position: StreamId


class Evidence(NamedTuple):
    """An answer: the first two fields to ENTRIES_UP_TO, the others to PENDING. `explain` asks for both."""

    has_entry: bool = False  # the stream holds the entry at the position: then `up_to` is not counted
    up_to: int | None = None  # entries that the stream has ever had up to the position; None: unknown
    pending: int = 0  # entries of the group that are pending for any consumer
    last_pending: StreamId = MIN_ID  # the last one of them
    has_consumer: bool = True  # the query's consumer was in the group after they were counted
