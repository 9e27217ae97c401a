"""Claims of this query that no offset names: a run died between the claim and its offset, or entries were handed to it.

They are the next batch's, as far as they fit into its bytes by the average size of a sample. If a claim does not fit,
its first entries that do are moved to a claim of their own, and the rest is left for the batches after this one.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

from spark_streams.model.ids import MAX_ID, MIN_ID
from spark_streams.source.findings.group_state import GroupState
from spark_streams.source.limits import Limits
from spark_streams.source.membership import Membership
from spark_streams.source.offset import Claimed, Offset
from spark_streams.source.pending_list import PendingRange, pending_ranges
from spark_streams.source.quota import BatchQuota
from spark_streams.source.recovery.claim_consumers import MARK, claim_consumer
from spark_streams.source.sampled_size import SampledSize, sampled_sizes
from spark_streams.wire.connection.server import Server
from spark_streams.wire.entries.pending_page import texts_of


def left_claims(member: Membership, states: Mapping[str, GroupState], begin: Offset) -> dict[str, list[Claimed]]:
    """Return our claims that `begin` does not name, per stream."""
    claims: dict[str, list[Claimed]] = {}
    for stream, state in states.items():
        logged = {claim.consumer for claim in begin.claimed.get(stream, ())}
        for other in state.others:
            if other.name.startswith(member.consumer + MARK) and other.name not in logged and other.pending:
                claims.setdefault(stream, []).append(Claimed(other.name, other.pending))
    return claims


def that_fit(
    server: Server, member: Membership, left: Mapping[str, Sequence[Claimed]], room: BatchQuota, limits: Limits
) -> tuple[dict[str, list[Claimed]], BatchQuota]:
    """Return those of these claims that fit, the last of them as far as it fits, and the room that they leave. A limit
    of entries does not count: a claim was made within it, or by another client.

    Raises GroupMissingError, ServerError.
    """
    sizes = {} if room.size is None else _sizes(server, member, left, limits)
    claims: dict[str, list[Claimed]] = {}
    for stream, some in left.items():
        for claim in some:
            if room.size is not None and room.size <= 0:
                return claims, room
            fitting = claim.count if room.size is None else sizes[stream].fitting(room.size)
            one = claim if fitting >= claim.count else _first_of(server, member, stream, claim, fitting, limits)
            claims.setdefault(stream, []).append(one)
            room = room.without({stream: one.count}, sizes)
    return claims, room


def _sizes(
    server: Server, member: Membership, left: Mapping[str, Sequence[Claimed]], limits: Limits
) -> dict[str, SampledSize]:
    """The sizes of the first entries of each stream's claims."""
    first = [
        PendingRange(stream, MAX_ID, consumer=claim.consumer, limit=1)
        for stream, some in left.items()
        for claim in some
    ]
    found = pending_ranges(server, member, first, 1, limits=limits)
    lowest = {entries.stream: entries.last for entries in sorted(found, key=lambda one: one.last, reverse=True)}
    after = {stream: lowest[stream].previous() if stream in lowest else MIN_ID for stream in left}
    return sampled_sizes(server, after, limits)


def _first_of(server: Server, member: Membership, stream: str, claim: Claimed, count: int, limits: Limits) -> Claimed:
    """Move the first `count` entries of a claim to a claim of their own; return that."""
    first = PendingRange(stream, MAX_ID, consumer=claim.consumer, limit=count)
    found = pending_ranges(server, member, [first], limits.pending_page, keep_ids=True, limits=limits)
    ids = [one for entries in found for one in texts_of(entries.ids).to_pylist()]
    to = claim_consumer(member.consumer, secrets.token_hex(6))
    pages = [ids[at : at + limits.claim_page] for at in range(0, len(ids), limits.claim_page)]
    server.execute_all([("XCLAIM", stream, member.group, to, 0, *page, "JUSTID") for page in pages])
    return Claimed(to, len(ids))
