"""Claims of this query that no offset names: a run died before it logged the offset, or the entries were handed to it.

The next batch takes them, as far as they fit into its bytes. If a claim does not
fit, its first entries are moved to a claim of their own, and later batches take the rest.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

from spark_streams.model.ids import MAX_ID
from spark_streams.source.findings.group_state import GroupState
from spark_streams.source.limits import Limits
from spark_streams.source.membership import Membership
from spark_streams.source.offset import Claimed, Offset
from spark_streams.source.pending_list import PendingRange, pending_ranges
from spark_streams.source.quota import BatchQuota
from spark_streams.source.recovery.claim_consumers import MARK, claim_consumer
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
    admitted: dict[str, list[Claimed]] = {}
    for stream, claims in unlogged.items():
        for claim in claims:
            fitting = quota.fitting(stream)
            if fitting == 0:
                return admitted, quota
            part = claim
            if fitting is not None and fitting < claim.count:
                part = _split_claim(server, member, stream, claim, fitting, limits)
            admitted.setdefault(stream, []).append(part)
            quota = quota.without({stream: part.count})
    return admitted, quota


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
