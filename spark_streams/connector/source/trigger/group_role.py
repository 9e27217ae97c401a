"""What the group is to its query: it delivers the entries of a batch, or it is a bookmark. One of two roles, chosen
once for a run (query/batch_stream.py):

                        Delivered (delivered.py)               Bookmarked (bookmarked.py, noAck)
the group is            where it has delivered up to           where the query has committed up to
above the position      entries are pending for the query      nothing is pending
at or below it          pending entries: old entries           pending entries: an error
a commit                XACK, then the commit mark             sets the group, with the commit mark
new entries             the group delivers them (reserve.py)   all of a range, whose end a scratch group finds
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from spark_streams.base.ids import StreamId
from spark_streams.connector.options.source_options import SourceOptions
from spark_streams.connector.source.commit_mark import Mark
from spark_streams.connector.source.group.looks import Looks
from spark_streams.connector.source.group.state import GroupState, Reserved
from spark_streams.connector.source.limits import Limits
from spark_streams.connector.source.membership import Membership
from spark_streams.connector.source.offset import Offset, StreamOffset
from spark_streams.connector.source.quota import BatchQuota
from spark_streams.connector.source.range import Range
from spark_streams.connector.source.trigger.admission import Admission
from spark_streams.connector.source.trigger.run_state import RunState
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.xinfo import StreamState


class GroupRole(ABC):
    """What a trigger asks the group of one query, and does with it."""

    no_ack: ClassVar[bool]  # as its offsets say

    def __init__(self, options: SourceOptions, limits: Limits) -> None:
        self.member = Membership((), options.group, options.consumer)
        self.limits = limits

    @abstractmethod
    def look(self, server: Server, start: Offset, streams: Sequence[str]) -> Looks:
        """Look at streams: each in one transaction, with what is pending above the position. Raises StreamStateError,
        ServerError."""

    @abstractmethod
    def at_query(self, at: StreamOffset, group: GroupState) -> GroupState:
        """Return the group with the position from which the query reads on."""

    @abstractmethod
    def position(self, stream: str, start: Offset, run: RunState) -> StreamId:
        """Return where this run has left the group of a stream. start: where its last batch ends."""

    @abstractmethod
    def old_entries(self, server: Server, start: Offset, pending: Mapping[str, int]) -> Mapping[str, int]:
        """Return how many entries the next batches read first. pending: how many entries are pending besides those
        that `look` has listed, and those of the last batch. Raises StreamStateError, ServerError."""

    def new_entries(
        self,
        server: Server,
        admission: Admission,
        heads: Mapping[str, StreamState],
        groups: Mapping[str, GroupState],
        backlog: Mapping[str, int],
        quota: BatchQuota,
        turn: int,
    ) -> Reserved:
        """Take what the quota admits of each stream's backlog. Raises as `take` does."""
        allowed = quota.divide(backlog, turn)
        between = [
            Range(stream, groups[stream].last_delivered, admission.end_of(stream, heads).last, count)
            for stream, count in allowed.items()
        ]
        wanted = [entries for entries in between if entries.count and not entries.is_empty]
        return self.take(server, admission, wanted, groups, backlog)

    @abstractmethod
    def take(
        self,
        server: Server,
        admission: Admission,
        wanted: Sequence[Range],
        groups: Mapping[str, GroupState],
        backlog: Mapping[str, int],
    ) -> Reserved:
        """Take the first `count` entries of each range, which begins at its group. backlog: entries of each stream.
        Raises GroupMissingError, DataLossError, ServerError."""

    @abstractmethod
    def commit(
        self,
        server: Server,
        ranges: Sequence[Range],
        marks: Mapping[str, Mark],
        committed: Offset,
        settled: Offset | None,
    ) -> int:
        """Acknowledge these ranges. Then set these commit marks. Return how many entries were acknowledged.

        committed: the checkpoint, in the streams whose groups may be set to it; settled: the last offset for which this
        was done, None: unknown. Raises GroupMissingError, DataLossError, ServerError."""

    @abstractmethod
    def token_of(self, batch: str) -> str:
        """Return the token that the streams of this batch have."""

    @abstractmethod
    def takes_long(self, admission: Admission, backlog: Mapping[str, int], quota: BatchQuota) -> bool:
        """Whether so many entries are taken ahead, while tasks read the batch before."""
