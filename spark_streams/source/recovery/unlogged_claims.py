"""Claims of this query that no offset names: a run died before it logged the offset, or the entries were handed to it.

The next batch takes them, as far as they fit into its bytes. The average size of a sample decides. If a claim does not
fit, its first entries are moved to a claim of their own, and later batches take the rest.
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


def unlogged_claims(member: Membership, states: Mapping[str, GroupState], begin: Offset) -> dict[str, list[Claimed]]:
    """Return the query's claims that `begin` does not name, per stream."""
    claims: dict[str, list[Claimed]] = {}
    for stream, state in states.items():
        logged = {claim.consumer for claim in begin.claimed.get(stream, ())}
        for other in state.others:
            if other.name.startswith(member.consumer + MARK) and other.name not in logged and other.pending:
                claims.setdefault(stream, []).append(Claimed(other.name, other.pending))
    return claims


def fitting_claims(
    server: Server,
    member: Membership,
    unlogged: Mapping[str, Sequence[Claimed]],
    quota: BatchQuota,
    limits: Limits,
) -> tuple[dict[str, list[Claimed]], BatchQuota]:
    """Return those of these claims that fit, the last one cut if necessary, and the remaining quota. A limit of entries
    does not count: the claim was made within it, or by another client.

    Raises GroupMissingError, ServerError.
    """
    sizes = {} if quota.size is None else _sample_sizes(server, member, unlogged, limits)
    admitted: dict[str, list[Claimed]] = {}
    for stream, claims in unlogged.items():
        for claim in claims:
            if quota.size is not None and quota.size <= 0:
                return admitted, quota
            fitting = claim.count if quota.size is None else sizes[stream].fitting(quota.size)
            is_all = fitting >= claim.count
            part = claim if is_all else _split_claim(server, member, stream, claim, fitting, limits)
            admitted.setdefault(stream, []).append(part)
            quota = quota.without({stream: part.count}, sizes)
    return admitted, quota


def _sample_sizes(
    server: Server, member: Membership, unlogged: Mapping[str, Sequence[Claimed]], limits: Limits
) -> dict[str, SampledSize]:
    """Return the sizes of the first entries of each stream's claims."""
    first = [
        PendingRange(stream, MAX_ID, consumer=claim.consumer, limit=1)
        for stream, claims in unlogged.items()
        for claim in claims
    ]
    ranges = pending_ranges(server, member, first, 1, limits=limits)
    by_id = sorted(ranges, key=lambda entries: entries.last, reverse=True)
    lowest = {entries.stream: entries.last for entries in by_id}
    after = {stream: lowest[stream].previous() if stream in lowest else MIN_ID for stream in unlogged}
    return sampled_sizes(server, after, limits)


def _split_claim(
    server: Server, member: Membership, stream: str, claim: Claimed, count: int, limits: Limits
) -> Claimed:
    """Move the first `count` entries of a claim to a new claim and return it."""
    first = PendingRange(stream, MAX_ID, consumer=claim.consumer, limit=count)
    ranges = pending_ranges(server, member, [first], limits.pending_page, keep_ids=True, limits=limits)
    ids = [entry_id for entries in ranges for entry_id in texts_of(entries.ids).to_pylist()]
    consumer = claim_consumer(member.consumer, secrets.token_hex(6))
    pages = [ids[start : start + limits.claim_page] for start in range(0, len(ids), limits.claim_page)]
    server.execute_all([("XCLAIM", stream, member.group, consumer, 0, *page, "JUSTID") for page in pages])
    return Claimed(consumer, len(ids))
