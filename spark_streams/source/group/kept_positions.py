"""Positions that are kept on the server while a query reads without a pending list (noAck) and its checkpoint does not
say so yet.

Without a pending list the group's position moves on before the checkpoint knows a first one, or before a checkpoint of
a run with a pending list is followed by one of a run without. What a run is to begin with again after a crash stands
under `rstream:start:…` then, per stream, until a checkpoint of such a run has it.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_streams.ids import StreamId
from spark_streams.source.group.initial_position import (
    InitialPositionKeys,
    forget_initial_positions,
    save_initial_positions,
    saved_initial_positions,
)
from spark_streams.source.membership import Membership
from spark_streams.source.offset import Offset
from spark_streams.wire.server import Server


class KeptPositions:
    """Those of one query. no_ack: whether this run reads without a pending list."""

    def __init__(self, no_ack: bool) -> None:
        self._no_ack = no_ack
        self._token: str | None = None  # the token of the checkpoint whose positions are kept
        self._forgotten: set[str] = set()  # streams whose positions are kept no more

    def first(self, server: Server, member: Membership, positions: Mapping[str, StreamId]) -> dict[str, StreamId]:
        """Where a query without a checkpoint begins: a run that came to no checkpoint has kept it, whatever options
        this one has. Empty where nothing is kept."""
        keys = _keys(member)
        if self._no_ack:
            kept = save_initial_positions(server, keys, positions)
        else:
            kept = saved_initial_positions(server, keys, list(positions))
        self._token = "" if kept else None
        return kept

    def is_unlisted(self, server: Server, member: Membership, begin: Offset, is_fresh: bool) -> bool:
        """Return whether groups may stand above the checkpoint without a pending list. is_fresh: nothing is known of
        what an earlier run left.

        A checkpoint of a noAck run says so itself. The first noAck run after others keeps the checkpoint's positions
        before it reserves, until there is a checkpoint of its own; who finds them there comes after such a run.
        """
        if is_fresh:
            self._find(server, member, begin)
        if self._token != begin.token and (self._no_ack or self._token is not None):
            # Also those of streams that a noAck run has met since.
            streams = [stream for stream in begin.positions if stream not in self._forgotten]
            forget_initial_positions(server, _keys(member), streams)
            self._forgotten, self._token = set(begin.positions), None
        return begin.no_ack or self._token == begin.token

    def _find(self, server: Server, member: Membership, begin: Offset) -> None:
        keys = _keys(member)
        kept = saved_initial_positions(server, keys, list(begin.positions))
        if begin.no_ack or any(position != begin[stream] for stream, position in kept.items()):
            forget_initial_positions(server, keys, list(kept))  # of a checkpoint before this one
            kept = {}
        if self._no_ack and not begin.no_ack:
            kept = save_initial_positions(server, keys, begin.positions)
        self._token = begin.token if kept else None


def _keys(member: Membership) -> InitialPositionKeys:
    return InitialPositionKeys("start", member)
