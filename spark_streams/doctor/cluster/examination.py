"""All that is looked at in a cluster, in order."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from spark_streams.doctor import clock, durability, kind, limits, memory, replication, rights
from spark_streams.doctor.cluster import failover, members, slots
from spark_streams.doctor.cluster.asking import ask_all
from spark_streams.doctor.cluster.facts import ClusterFacts, Member
from spark_streams.doctor.cluster.merging import merge
from spark_streams.doctor.finding import Finding, sorted_by_level
from spark_streams.doctor.server_facts import ServerFacts
from spark_streams.wire.address import Address


def examine(
    address: Address,
    uses: Sequence[str] = rights.USES,
    streams: Sequence[str] = (),
    now: Callable[[], float] = time.time,
) -> tuple[ClusterFacts, list[Finding]]:
    """What the nodes are, and what was found, the worst first. Raises what asking raises."""
    facts = ask_all(address, uses, streams, now)
    lacks = [(one.name, rights.findings(said.user, one.lacks, streams)) for one, said in facts.reached.items()]
    return facts, sorted_by_level([*judge(facts), *merge(lacks)])


def judge(facts: ClusterFacts) -> list[Finding]:
    """What follows from what the nodes say. Pure."""
    return [
        *slots.look(facts),
        *members.look(facts),
        *failover.look(facts),
        *merge((one.name, _of_one(one, said)) for one, said in facts.reached.items()),
    ]


def _of_one(member: Member, said: ServerFacts) -> list[Finding]:
    """As of one server, but that a replica is what it should be: it is looked at because it may become the master."""
    looks = [kind.look, durability.look, memory.look, limits.look, clock.look]
    if not said.is_replica:
        looks.append(replication.look)
    return [found for look in looks for found in look(said)]
