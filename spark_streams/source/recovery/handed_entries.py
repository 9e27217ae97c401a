"""Handed entries: another client has given them to the query's consumer (XCLAIM, XAUTOCLAIM), below what it has read.

They are pending for the query, but no batch of it contains them. The query claims them like those of a dead consumer
(source.recovery.claim): it moves them to a consumer of their own, and the offset of the batch that reads them names it.
A query with noAck reads no pending list, so it refuses to run.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from spark_streams.errors import StreamStateError
from spark_streams.model.ids import StreamId
from spark_streams.model.operator_commands import acknowledge_command
from spark_streams.source.findings.group_state import GroupState
from spark_streams.source.limits import Limits
from spark_streams.source.membership import Membership
from spark_streams.source.pending_list import PendingRange, pending_ranges
from spark_streams.source.recovery.claim import ClaimTarget, send_claim
from spark_streams.source.recovery.claim_consumers import claim_consumer
from spark_streams.wire.connection.server import Server

_log = logging.getLogger("spark_streams.source")


def claim_handed_entries(
    server: Server,
    member: Membership,
    states: Mapping[str, GroupState],
    floors: Mapping[str, StreamId],
    token: str,
    limits: Limits,
) -> bool:
    """Claim the handed entries, so that a batch takes them as an unlogged claim. Return whether there were any.

    floors: up to this ID, entries that are pending for the query's consumer belong to no batch.
    Raises GroupMissingError, ServerError.
    """
    pending = [PendingRange(stream, floors[stream]) for stream, state in states.items() if state.ours]
    ranges = pending_ranges(server, member, pending, limits.pending_page, keep_ids=True, limits=limits)
    for entries in ranges:
        _log.warning(
            "stream %r: another client handed %d entries up to %s to consumer %r. The next batch reads them. If they "
            "exceed maxBytesPerTrigger, later batches read the rest",
            entries.stream, entries.count, entries.last, member.consumer,
        )  # fmt: skip
        target = ClaimTarget(claim_consumer(member.consumer, token))
        send_claim(server, member, entries.stream, target, entries.count, entries.ids)
    return bool(ranges)


def refuse_handed_entries(server: Server, member: Membership, states: Mapping[str, GroupState]) -> None:
    """Raise StreamStateError if entries are pending for a query with noAck: no batch would read them.

    states: the groups, after the query has acknowledged entries of committed batches and entries that it reads again.
    """
    for stream in [stream for stream, state in states.items() if state.ours]:
        count, first, last, _ = server.execute("XPENDING", stream, member.group)
        group, consumer = member.group, member.consumer
        if not count:
            continue
        raise StreamStateError(
            f"stream {stream!r}: {count} entries from {first.decode()} to {last.decode()} are pending for consumer "
            f"{consumer!r} of group {group!r}, and no batch has read them: another client handed them over (XCLAIM, "
            "rstream groups claim), or a run without noAck left them. A query with noAck cannot read them. Run it "
            "once without noAck: it reads them with its first batch. If they need not be read, stop it and acknowledge "
            f"them ({acknowledge_command(stream, group, consumer)})"
        )
