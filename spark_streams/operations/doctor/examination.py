"""All checks of one server."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from spark_streams.connector.wire.connection.connection import Connection
from spark_streams.operations.doctor import clock, durability, kind, limits, memory, replication, rights, stream_counts
from spark_streams.operations.doctor.asking import fetch_facts
from spark_streams.operations.doctor.finding import Finding, sorted_by_level
from spark_streams.operations.doctor.server_facts import ServerFacts


def examine(
    server: Connection,
    uses: Sequence[str] = rights.USES,
    streams: Sequence[str] = (),
    now: Callable[[], float] = time.time,
) -> tuple[ServerFacts, list[Finding]]:
    """Return the facts of the server, and the findings, the worst first. uses, streams: for which rights are checked;
    the streams are examined, too. Raises ServerUnreachableError."""
    facts = fetch_facts(server, now)
    lacks = rights.ask_rights(server, uses, streams)
    of_streams = stream_counts.ask_streams(server, streams)
    return facts, sorted_by_level([*judge(facts), *of_streams, *rights.findings(facts.user, lacks, streams)])


def judge(facts: ServerFacts) -> list[Finding]:
    """Return the findings that follow from the facts. Pure."""
    return [
        *kind.check(facts),
        *durability.check(facts),
        *memory.check(facts),
        *replication.check(facts),
        *clock.check(facts),
        *limits.check(facts),
        *stream_counts.check(facts),
    ]
