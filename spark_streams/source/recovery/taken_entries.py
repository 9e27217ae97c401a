"""What claims hold, remembered beside the stream until their batch is acknowledged.

An offset names its claims, and how many entries each must hold. Between a claim and its offset only the server knows of
it: `rstream:claims:{stream}:<group>:<consumer>`, a hash, has the consumer of each claim and how many entries it holds.
So a run that finds claims which no offset names knows what was taken from them meanwhile, also where a consumer was
deleted with all that it held. A query that takes over what a dead one had claimed or held apart says so there, under
`<consumer> taken`: those entries are not missed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_streams.keys import key_beside
from spark_streams.numbers import whole
from spark_streams.source.entry_range import EntryRange
from spark_streams.source.group.group_state import GroupState
from spark_streams.source.membership import Membership
from spark_streams.source.offset import Claimed, Offset
from spark_streams.wire.connection import Argument
from spark_streams.wire.server import Server

_TAKEN = " taken"


def claims_key(stream: str, member: Membership) -> bytes:
    """The hash of one query's claims on one stream."""
    return key_beside(stream, "claims", member.group, member.consumer)


@dataclass(frozen=True)
class Missing:
    """Entries that somebody has taken from a claim: `count` of the `of` that it had."""

    stream: str
    consumer: str
    count: int
    of: int

    def __str__(self) -> str:
        return (
            f"of {self.of} that {self.consumer!r} had claimed are no longer pending for it (acknowledged, claimed by "
            "another consumer, or XGROUP DELCONSUMER)"
        )


class Taken:
    """The claims that an earlier run has left; those of this one it knows."""

    def __init__(self) -> None:
        self._looked: set[str] = set()  # streams

    def forget(self) -> None:
        """Take nothing for known."""
        self._looked = set()

    def missing(
        self, server: Server, member: Membership, states: Mapping[str, GroupState], begin: Offset
    ) -> list[Missing]:
        """What is missing from claims that no offset names. begin: the last one, acknowledged or about to be."""
        new = [stream for stream in states if stream not in self._looked]
        missing = []
        for stream, known in _known(server, member, new).items():
            held = {other.name: other.pending for other in states[stream].others}
            logged = {claim.consumer for claim in begin.claimed.get(stream, ())}
            for consumer, count in known.items():
                gone = count - held.get(consumer, 0) - known.get(consumer + _TAKEN, 0)
                if gone > 0 and not consumer.endswith(_TAKEN) and consumer not in logged:
                    missing.append(Missing(stream, consumer, gone, count))
        self._looked |= set(new) - {taken.stream for taken in missing}
        return missing


def taken_over(server: Server, member: Membership, asked: Sequence[tuple[str, str]]) -> Counter[tuple[str, str]]:
    """How many entries other queries have taken over from these consumers of a query on these streams."""
    known = _known(server, member, list(dict.fromkeys(stream for stream, _ in asked)))
    return Counter({(stream, consumer): known[stream].get(consumer + _TAKEN, 0) for stream, consumer in asked})


def _known(server: Server, member: Membership, streams: Sequence[str]) -> dict[str, dict[str, int]]:
    replies = server.execute_all([("HGETALL", claims_key(stream, member)) for stream in streams])
    return {
        stream: {
            name.decode("utf-8", "surrogateescape"): whole(n) or 0
            for name, n in zip(flat[0::2], flat[1::2], strict=True)
        }
        for stream, flat in zip(streams, replies, strict=True)
    }


def missing_from(claimed: Mapping[str, Sequence[Claimed]], ranges: Sequence[EntryRange]) -> list[Missing]:
    """What is missing of a batch's claims. ranges: what they hold."""
    held = Counter[tuple[str, str]]()
    for entries in ranges:
        held[entries.stream, entries.consumer] += entries.count
    missing: list[Missing] = []
    for stream, claims in claimed.items():
        for claim in claims:
            left = held[stream, claim.consumer]
            if left < claim.count:
                missing.append(Missing(stream, claim.consumer, claim.count - left, claim.count))
    return missing


def remember(member: Membership, stream: str, consumer: str, count: int) -> tuple[Argument, ...]:
    """The command that remembers what a claim holds."""
    return ("HSET", claims_key(stream, member), consumer, count)


def take(member: Membership, stream: str, consumer: str, count: int) -> tuple[Argument, ...]:
    """The command that says that so many entries were taken over from a consumer that this query had made."""
    return ("HINCRBY", claims_key(stream, member), consumer + _TAKEN, count)


def forget(member: Membership, stream: str, consumer: str) -> tuple[Argument, ...]:
    """The command that forgets a claim or piece."""
    return ("HDEL", claims_key(stream, member), consumer, consumer + _TAKEN)
