"""All that is looked at, in order."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from spark_streams.doctor import clock, durability, kind, limits, memory, replication, rights
from spark_streams.doctor.asking import ask
from spark_streams.doctor.finding import Finding, sorted_by_level
from spark_streams.doctor.server_facts import ServerFacts
from spark_streams.wire.connection.connection import Connection


def examine(
    server: Connection,
    uses: Sequence[str] = rights.USES,
    streams: Sequence[str] = (),
    now: Callable[[], float] = time.time,
) -> tuple[ServerFacts, list[Finding]]:
    """What the server is, and what was found, the worst first. uses, streams: whose rights are looked at. Raises
    ServerUnreachableError."""
    facts = ask(server, now)
    lacks = rights.ask_rights(server, uses, streams)
    return facts, sorted_by_level([*judge(facts), *rights.findings(facts.user, lacks, streams)])


def judge(facts: ServerFacts) -> list[Finding]:
    """What follows from what the server says. Pure."""
    return [
        *kind.look(facts),
        *durability.look(facts),
        *memory.look(facts),
        *replication.look(facts),
        *clock.look(facts),
        *limits.look(facts),
    ]
