"""Positions that older versions saved on the server (`rstream:start:…`), with `noAck`.

Their groups delivered entries, so a group may be above the entries that were read, and no checkpoint tells. This
version reads these positions and does not write them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from spark_streams.source.group.initial_position import (
    InitialPositionKeys,
    delete_initial_positions,
    fetch_initial_positions,
)
from spark_streams.source.membership import Membership
from spark_streams.source.offset import Offset
from spark_streams.wire.connection.server import Server


def with_older_positions(server: Server, member: Membership, begin: Offset, streams: Sequence[str]) -> Offset:
    """Return the checkpoint with the positions of older versions, if such a run died before its first checkpoint, or
    before the first one with one of these streams. Raises StreamStateError, ServerError."""
    saved = fetch_initial_positions(server, _keys(member), sorted({*streams, *begin.positions}))
    if not saved:
        return begin
    if not begin.token:
        return replace(begin, positions={**begin.positions, **saved}, no_ack=True)
    of_checkpoint = {stream: position for stream, position in saved.items() if stream in begin.positions}
    if begin.no_ack or any(position != begin[stream] for stream, position in of_checkpoint.items()):
        delete_older_positions(server, member, list(of_checkpoint))  # they belong to an earlier checkpoint
        of_checkpoint = {}
    is_unlisted = begin.no_ack or bool(of_checkpoint)
    return replace(begin, positions={**saved, **begin.positions}, no_ack=is_unlisted)


def delete_older_positions(server: Server, member: Membership, streams: Sequence[str]) -> None:
    """Delete these positions, because the checkpoint has them."""
    delete_initial_positions(server, _keys(member), streams)


def _keys(member: Membership) -> InitialPositionKeys:
    return InitialPositionKeys("start", member)
