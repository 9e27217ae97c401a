"""Entries that another client has handed to our consumer (XCLAIM, XAUTOCLAIM) below what its batches have read.

They are pending for us, and no batch of ours was given them. They are claimed like those of a dead consumer
(source.recovery.claim): moved to consumers of their own, which the offset of the batch that reads them names.
A query with noAck has no pending list to read them from, and refuses.
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
from spark_streams.source.recovery.claim import To, send_claim
from spark_streams.source.recovery.claim_consumers import claim_consumer
from spark_streams.wire.connection.server import Server

_log = logging.getLogger("spark_streams.source")


def take_handed(
    server: Server,
    member: Membership,
    states: Mapping[str, GroupState],
    floors: Mapping[str, StreamId],
    token: str,
    limits: Limits,
) -> bool:
    """Whether there were any. They are claimed now, for a batch that takes what no offset names (claim).

    floors: up to where what is pending for us is not from a batch. Raises GroupMissingError, ServerError.
    """
    asked = [PendingRange(stream, floors[stream]) for stream, state in states.items() if state.ours]
    ranges = pending_ranges(server, member, asked, limits.pending_page, keep_ids=True, limits=limits)
    for entries in ranges:
        _log.warning(
            "stream %r: another client handed %d entries up to %s to consumer %r. The next batch reads them; later "
            "batches read those that maxBytesPerTrigger leaves no room for",
            entries.stream, entries.count, entries.last, member.consumer,
        )  # fmt: skip
        to = To(claim_consumer(member.consumer, token))
        send_claim(server, member, entries.stream, to, entries.count, entries.ids)
    return bool(ranges)


def refuse_handed(server: Server, member: Membership, states: Mapping[str, GroupState]) -> None:
    """Raise StreamStateError if entries are pending for a query with noAck: no batch of it would read them.

    states: the groups, after what committed batches have left and what is going to be delivered again was acknowledged.
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
