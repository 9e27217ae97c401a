"""The query's groups at a trigger, held against the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from spark_streams.ids import MIN_ID, StreamId
from spark_streams.source.group import GroupState, Membership, StreamState, look, missing
from spark_streams.source.losses import Losses, check_trimmed, reconcile
from spark_streams.source.offsets import Offset
from spark_streams.source.reserve import require_alone
from spark_streams.source.start import create_consumers, pin, set_groups_to
from spark_streams.wire.connection import Connection


class Groups:
    """may_vanish: a stream that is gone is read no more (streamsPattern); alone: the checkpoint is the only truth
    (noAck). heads: the streams at the last look."""

    def __init__(self, losses: Losses, may_vanish: bool, alone: bool) -> None:
        self._losses = losses
        self._may_vanish = may_vanish
        self._alone = alone
        self.heads: Mapping[str, StreamState] = {}

    def reconciled(
        self,
        server: Connection,
        member: Membership,
        begin: Offset,
        streams: Sequence[str],
        ends: Mapping[str, StreamId],
        afresh: bool,
    ) -> tuple[Offset, dict[str, GroupState]]:
        """The groups as they are, once they agree with the checkpoint, and the checkpoint without streams that are
        gone. ends: where groups stand above it, with what was reserved ahead; afresh: nothing is known of what an
        earlier run did.

        Raises DataLossError, GroupMissingError, StreamStateError, GroupSharedError.
        """
        self.heads, found = look(server, member, streams)
        if self._may_vanish:
            gone = [stream for stream in streams if not self.heads[stream].exists]
            for stream in gone:
                if not self._losses.allowed and begin[stream] > MIN_ID:
                    raise missing(server, member, stream, stream_too=True)
                self._losses.vanished(stream)
            self.heads = {stream: head for stream, head in self.heads.items() if stream not in gone}
            found = {stream: state for stream, state in found.items() if stream not in gone}
            begin = begin.without(gone) if gone else begin
        if self._alone:
            found.update(self.alone(server, member, begin, found, ends, afresh))
        elif begin.no_ack and afresh:
            # The run before was without a pending list. Where something is pending, this was done before.
            unlisted = {stream: state for stream, state in found.items() if state is not None and not state.ours}
            found.update(self.alone(server, member, begin, unlisted, {}, afresh=False))
        if reconcile(server, member, begin, self.heads, found, self._losses, ends):
            states = self.now(server, member, list(found))
        else:
            states = {stream: state for stream, state in found.items() if state is not None}
        create_consumers(server, member, [stream for stream, state in states.items() if not state.known])
        check_trimmed(member, self.heads, states, self._losses)
        self._losses.remember(self.heads, states)
        return begin, states

    def now(self, server: Connection, member: Membership, streams: Sequence[str]) -> dict[str, GroupState]:
        """The groups as they are. Raises GroupMissingError, DataLossError where one is gone."""
        self.heads, found = look(server, member, streams)
        states = {}
        for stream, state in found.items():
            if state is None:
                raise missing(server, member, stream, not self.heads[stream].exists)
            states[stream] = state
        return states

    def alone(
        self,
        server: Connection,
        member: Membership,
        begin: Offset,
        states: Mapping[str, GroupState | None],
        ends: Mapping[str, StreamId],
        afresh: bool,
    ) -> dict[str, GroupState]:
        """noAck: nobody else may read from the groups, and they stand at the checkpoint, or at these `ends`: one that
        is above is set back, `afresh` one that is below is moved, too. The groups then.

        The position of a stream that is new is kept until the checkpoint has one. Raises GroupSharedError.
        """
        back = {}
        found = {stream: state for stream, state in states.items() if state is not None}
        for stream, state in found.items():
            require_alone(member, stream, state)
        new = {stream: state.last_delivered for stream, state in found.items() if stream not in begin.positions}
        kept = {**begin.positions, **pin(server, member, new)}
        for stream, state in found.items():
            at = ends.get(stream, kept[stream])
            is_elsewhere = state.last_delivered != at if afresh else state.last_delivered > at
            # If this is still the stream that the checkpoint speaks of.
            if is_elsewhere and kept[stream] <= self.heads[stream].last:
                back[stream] = kept[stream]
                found[stream] = replace(state, last_delivered=kept[stream], entries_read=None, lag=None)
        set_groups_to(server, member, back)
        return found
