"""What the driver knows when it holds streams and groups against the checkpoint. Values only."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from spark_streams.ids import MIN_ID, StreamId
from spark_streams.retention.commit_mark import Mark
from spark_streams.source.group.group_state import GroupState
from spark_streams.source.membership import Membership
from spark_streams.source.offset import Count
from spark_streams.wire.xinfo import StreamState


@dataclass(frozen=True)
class Snapshot:
    """The streams, their groups and the query's commit marks at one moment. groups: None where there is no group."""

    heads: Mapping[str, StreamState]
    groups: Mapping[str, GroupState | None]
    marks: Mapping[str, Mark] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """What the run of the query knows beside that.

    counts: the entries of each stream at its group's position; at first those of the checkpoint. reserved: streams with
    entries that are reserved above the checkpoint. bookmarks: where this run has left the groups; None: they deliver.
    by_pattern: the query reads the streams that match a pattern.
    """

    member: Membership
    counts: Mapping[str, Count]
    reserved: Collection[str] = ()
    bookmarks: Mapping[str, StreamId] | None = None
    by_pattern: bool = False


class Ask(Enum):
    """What a question asks for."""

    ENTRIES_UP_TO = auto()  # how many entries the stream has ever had up to a position
    PENDING = auto()  # what is pending for the consumers of the group


class Question(NamedTuple):
    """What the diagnosis needs to know, and the snapshot does not tell."""

    stream: str
    ask: Ask
    position: StreamId


class Evidence(NamedTuple):
    """An answer. has_entry: the stream holds the entry at the position. up_to: how many entries it has ever had up to
    there; None: nobody can tell, or it need not be counted because that entry is there. pending, last_pending: entries
    that are pending for anybody, and the last of them."""

    has_entry: bool = False
    up_to: int | None = None
    pending: int = 0
    last_pending: StreamId = MIN_ID
