"""Consumers that a query creates for its claims: how they are named and deleted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_streams.source.findings.group_state import GroupState
from spark_streams.source.membership import Membership
from spark_streams.source.offset import Claimed
from spark_streams.wire.connection.server import Server

MARK = "~claim~"


def claim_consumer(consumer: str, token: str) -> str:
    """Return the name of the consumer that holds the entries of one claim."""
    return f"{consumer}{MARK}{token}"


def delete_claim_consumers(server: Server, member: Membership, claimed: Mapping[str, Sequence[Claimed]]) -> None:
    """Delete the consumers of a committed claim, except those that still hold entries (R10)."""
    names = [(stream, claim.consumer) for stream, claims in claimed.items() for claim in claims]
    _delete_if_empty(server, member, names)


def _delete_if_empty(server: Server, member: Membership, names: Sequence[tuple[str, str]]) -> None:
    """Delete those of these (stream, consumer) that have no pending entries."""
    if not names:
        return
    held = server.pipeline([("XPENDING", s, member.group, "-", "+", 1, consumer) for s, consumer in names])
    empty = [name for name, reply in zip(names, held, strict=True) if reply == []]
    server.pipeline([("XGROUP", "DELCONSUMER", s, member.group, consumer) for s, consumer in empty])


def delete_empty_consumers(server: Server, member: Membership, states: Mapping[str, GroupState]) -> None:
    """Delete consumers of the query's earlier claims and pieces that a crash has left behind."""
    names = [
        (stream, other.name)
        for stream, state in states.items()
        for other in state.others
        if member.owns(other.name) and not other.pending
    ]
    _delete_if_empty(server, member, names)
