"""Whose pending entries a query takes over: those of dead consumers of the group, and released ones."""

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
    """Whose entries are taken. consumer: its name, None: nobody's, they were released; idle: milliseconds that they
    must have been left alone."""

    consumer: str | None
    idle: int

    @property
    def counts(self) -> bool:
        """Whether a claim is one more delivery."""
        return self.consumer is None or OF_A_QUERY.search(self.consumer) is None

    def question(self, member: Membership, stream: str, start: StreamId, count: int) -> tuple[Argument, ...]:
        """XPENDING of its next entries."""
        name = () if self.consumer is None else (self.consumer,)
        return ("XPENDING", stream, member.group, "IDLE", self.idle, bytes(start), "+", count, *name)


def holders_of(
    server: Server,
    member: Membership,
    states: Mapping[str, GroupState],
    idle: int | None,
    released: bool,
    live: Live,
) -> dict[str, list[Holder]]:
    """Return whose entries are to be taken, per stream, released ones first.

    idle: milliseconds that a dead consumer's entries must have been left alone, None: no consumer's are taken;
    released: whether released ones are; live: which of some (stream, consumer) are queries that run.

    Raises ServerError.
    """
    asked = [stream for stream, state in states.items() if state.released and released]
    found = {stream: [Holder(None, RELEASED_IDLE)] for stream in _with_released(server, member, asked)}
    if idle is not None:
        for stream, dead in _dead_consumers(server, member, states, live).items():
            found.setdefault(stream, []).extend(Holder(name, idle) for name in dead)
    return found


def _with_released(server: Server, member: Membership, streams: Sequence[str]) -> list[str]:
    """Return those of these streams whose group has released entries. A state shows more pending entries than the
    consumers have also if somebody acknowledged some between the two replies."""
    summaries = server.execute_all([("XPENDING", stream, member.group) for stream in streams])
    return [stream for stream, summary in zip(streams, summaries, strict=True) if released_in(summary)]


def _dead_consumers(
    server: Server, member: Membership, states: Mapping[str, GroupState], live: Live
) -> dict[str, list[str]]:
    """Per stream, the consumers that hold entries, are not ours, and are not running rstream queries."""
    suspects: list[tuple[str, OtherConsumer]] = []
    for stream, state in states.items():
        suspects += [
            (stream, other) for other in state.others if other.pending and owner_of(other.name) != member.consumer
        ]
    if not suspects:
        return {}
    owners = [(stream, owner_of(other.name)) for stream, other in suspects]
    alive = live(server, owners)
    dead: dict[str, list[str]] = {}
    for (stream, other), owner in zip(suspects, owners, strict=True):
        if owner not in alive:
            dead.setdefault(stream, []).append(other.name)
    return dead
