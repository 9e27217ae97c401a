"""Claims of this query that no offset names: a run died between the claim and its offset, or entries were handed to it.

They are the next batch's, as far as they fit into its bytes. If a claim does not fit, its first entries that do are
moved to a claim of their own, and the rest is left for the batches after this one.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

from spark_streams.ids import MAX_ID, MIN_ID
from spark_streams.source.entry_range import EntryRange
from spark_streams.source.group.group_state import GroupState
from spark_streams.source.limits import Limits
from spark_streams.source.membership import Membership
from spark_streams.source.offset import Claimed, Offset
from spark_streams.source.pending_list import PendingRange, pending_ranges
from spark_streams.source.recovery.claim_consumers import MARK, claim_consumer
from spark_streams.source.weigh import Budget, Weighed
from spark_streams.wire.entries.pending_page import texts_of
from spark_streams.wire.server import Server


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
    server: Server, member: Membership, left: Mapping[str, Sequence[Claimed]], budget: Budget | None, limits: Limits
) -> dict[str, list[Claimed]]:
    """Return those of these claims that fit into the budget, the last of them as far as it fits.

    Raises GroupMissingError, ServerError.
    """
    claims: dict[str, list[Claimed]] = {}
    for stream, some in left.items():
        for claim in some:
            weighed = None
            if budget is not None:
                weighed = budget.take(EntryRange(stream, MIN_ID, MAX_ID, claim.count, False, claim.consumer))
            if weighed is None or weighed.is_all:
                claims.setdefault(stream, []).append(claim)
            elif weighed.count:
                claims.setdefault(stream, []).append(_first_of(server, member, stream, claim, weighed, limits))
    return claims


def _first_of(
    server: Server, member: Membership, stream: str, claim: Claimed, weighed: Weighed, limits: Limits
) -> Claimed:
    """Move the first entries of a claim, up to the last one that fits, to a claim of their own; return that."""
    first = PendingRange(stream, weighed.last, consumer=claim.consumer)
    found = pending_ranges(server, member, [first], limits.pending_page, keep_ids=True, limits=limits)
    ids = [one for entries in found for one in texts_of(entries.ids).to_pylist()]
    to = claim_consumer(member.consumer, secrets.token_hex(6))
    pages = [ids[at : at + limits.claim_page] for at in range(0, len(ids), limits.claim_page)]
    server.execute_all([("XCLAIM", stream, member.group, to, 0, *page, "JUSTID") for page in pages])
    return Claimed(to, len(ids))
