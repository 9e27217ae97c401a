"""Entries that somebody has handed to our consumer (XCLAIM, XAUTOCLAIM) below what its batches have read.

They are pending for us, and no batch of ours was given them. They are claimed like those of a dead consumer
(source.recovery.claim): moved to a consumer of their own, which the offset of the next batch names.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from spark_streams.ids import StreamId
from spark_streams.source.group.group_state import GroupState
from spark_streams.source.limits import Limits
from spark_streams.source.membership import Membership
from spark_streams.source.pending_list import PendingRange, pending_ranges
from spark_streams.source.recovery.claim import send_claim
from spark_streams.source.recovery.claim_consumers import claim_consumer
from spark_streams.wire.server import Server

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
            "stream %r: %d entries up to %s were handed to consumer %r by somebody: they are read with the next batch",
            entries.stream, entries.count, entries.last, member.consumer,
        )  # fmt: skip
        send_claim(
            server, member, entries.stream, claim_consumer(member.consumer, token), 0, entries.count, entries.ids
        )
    return bool(ranges)
