"""How a query gets the entries of a batch from its group. One of two, chosen once for a run (batch_stream.py):

                        Delivered (delivered.py)               Bookmarked (bookmarked.py, noAck)
the group is            where it has delivered up to           where the query has committed up to
above the position      entries are pending for the query      nothing is pending
at or below it          pending entries: the second backlog    pending entries: an error
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from spark_streams.model.ids import StreamId
from spark_streams.options.source_options import SourceOptions
from spark_streams.source.group.state import GroupState
from spark_streams.source.limits import Limits
from spark_streams.source.membership import Membership
from spark_streams.source.offset import Offset, StreamOffset
from spark_streams.source.trigger.looks import Looks
from spark_streams.source.trigger.run_state import RunState
from spark_streams.wire.connection.server import Server


class Delivery(ABC):
    """What a trigger asks and does, of one query and its group."""

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
    def second_backlog(self, server: Server, start: Offset, pending: Mapping[str, int]) -> Mapping[str, int]:
        """Return how many entries the next batches read first. pending: how many entries are pending besides those
        that `look` has listed, and those of the last batch. Raises StreamStateError, ServerError."""
