"""Positions that older versions kept on the server (`rstream:start:…`). With `noAck` they had the group deliver
entries, so a group may stand above what is read, and no checkpoint says so. They are read, and not written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from spark_streams.source.group.initial_position import (
    InitialPositionKeys,
    forget_initial_positions,
    saved_initial_positions,
)
from spark_streams.source.membership import Membership
from spark_streams.source.offset import Offset
from spark_streams.wire.connection.server import Server


def with_older_positions(server: Server, member: Membership, begin: Offset, streams: Sequence[str]) -> Offset:
    """Where the query stands, if such a run died before its first checkpoint, or before the first one that knows one of
    these streams. Raises StreamStateError, ServerError."""
    kept = saved_initial_positions(server, _keys(member), sorted({*streams, *begin.positions}))
    if not kept:
        return begin
    if not begin.token:
        return replace(begin, positions={**begin.positions, **kept}, no_ack=True)
    of_checkpoint = {stream: at for stream, at in kept.items() if stream in begin.positions}
    if begin.no_ack or any(at != begin[stream] for stream, at in of_checkpoint.items()):
        forget_older_positions(server, member, list(of_checkpoint))  # of a checkpoint before this one
        of_checkpoint = {}
    is_unlisted = begin.no_ack or bool(of_checkpoint)
    return replace(begin, positions={**kept, **begin.positions}, no_ack=is_unlisted)


def forget_older_positions(server: Server, member: Membership, streams: Sequence[str]) -> None:
    """The checkpoint has them."""
    forget_initial_positions(server, _keys(member), streams)


def _keys(member: Membership) -> InitialPositionKeys:
    return InitialPositionKeys("start", member)
