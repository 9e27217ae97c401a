"""Holders of pending entries that a query takes over: dead consumers of the group, and released entries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from spark_streams.model.ids import StreamId
from spark_streams.source.findings.group_state import GroupState, OtherConsumer
from spark_streams.source.membership import OF_A_QUERY, Membership, owner_of
from spark_streams.wire.connection.connection import Argument
from spark_streams.wire.connection.server import Server
from spark_streams.wire.replies.released import RELEASED_IDLE, released_in

Live = Callable[[Server, Sequence[tuple[str, str]]], set[tuple[str, str]]]


@dataclass(frozen=True)
class Holder:
    """Holder of entries to claim. consumer: its name, None: the entries were released; idle: milliseconds since the
    last delivery of an entry, at least."""

    consumer: str | None
    idle: int

    @property
    def counts(self) -> bool:
        """Whether a claim from this holder counts as a delivery."""
        return self.consumer is None or OF_A_QUERY.search(self.consumer) is None

    def xpending(self, member: Membership, stream: str, start: StreamId, count: int) -> tuple[Argument, ...]:
        """Return the XPENDING that lists its next entries."""
        name = () if self.consumer is None else (self.consumer,)
        return ("XPENDING", stream, member.group, "IDLE", self.idle, bytes(start), "+", count, *name)


def find_holders(
    server: Server,
    member: Membership,
    states: Mapping[str, GroupState],
    idle: int | None,
    take_released: bool,
    live: Live,
) -> dict[str, list[Holder]]:
    """Return the holders of entries to claim, per stream, released entries first.

    idle: milliseconds since the last delivery of a dead consumer's entry, at least; None: take from no consumer; live:
    returns those of these (stream, consumer) that are running queries.

    Raises ServerError.
    """
    candidates = [stream for stream, state in states.items() if state.released and take_released]
    holders = {stream: [Holder(None, RELEASED_IDLE)] for stream in _with_released(server, member, candidates)}
    if idle is not None:
        for stream, dead in _dead_consumers(server, member, states, live).items():
            holders.setdefault(stream, []).extend(Holder(name, idle) for name in dead)
    return holders


def _with_released(server: Server, member: Membership, streams: Sequence[str]) -> list[str]:
    """Return those of these streams whose group has released entries. The counts in a state cannot tell: a client may
    have acknowledged entries between the two replies."""
    summaries = server.execute_all([("XPENDING", stream, member.group) for stream in streams])
    return [stream for stream, summary in zip(streams, summaries, strict=True) if released_in(summary)]


def _dead_consumers(
    server: Server, member: Membership, states: Mapping[str, GroupState], live: Live
) -> dict[str, list[str]]:
    """Return, per stream, consumers with pending entries that belong neither to this query nor to a running query."""
    candidates: list[tuple[str, OtherConsumer]] = []
    for stream, state in states.items():
        candidates += [
            (stream, other) for other in state.others if other.pending and owner_of(other.name) != member.consumer
        ]
    if not candidates:
        return {}
    owners = [(stream, owner_of(other.name)) for stream, other in candidates]
    alive = live(server, owners)
    dead: dict[str, list[str]] = {}
    for (stream, other), owner in zip(candidates, owners, strict=True):
        if owner not in alive:
            dead.setdefault(stream, []).append(other.name)
    return dead
