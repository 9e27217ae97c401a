"""Changes of a group that are only made while none of its queries is running.

    WATCH the leases   GET the leases   → a query is running: refuse
    MULTI   the change   EXEC           → a lease was taken or has expired meanwhile: try again

A query takes its lease before it reads the state of its group. So it reads the changed state, or the change is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_streams.connector.errors import GroupInUseError
from spark_streams.connector.source.group_client import lease_key
from spark_streams.connector.wire.connection.connection import Argument, Reply
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.lease import Processes
from spark_streams.connector.wire.replies.multi_exec import transact
from spark_streams.operations.groups.group_snapshot import find_running, running_message


def change(
    server: Server,
    stream: str,
    group: str,
    queries: Sequence[str],
    commands: Sequence[Sequence[Argument]],
    processes: Processes | None = None,
) -> list[Reply]:
    """Run commands on keys of the stream's slot as one transaction, while none of these queries is running. Return
    their replies. Raises GroupInUseError, and the named error of the first error reply."""
    keys = [lease_key(stream, group, query) for query in queries]
    while True:
        watch: list[Sequence[Argument]] = [("WATCH", *keys)] if keys else []
        leases = server.execute_all([*watch, *[("GET", key) for key in keys]])[len(watch) :]
        held = find_running(server, queries, leases, processes or Processes())
        if held:
            server.execute("UNWATCH")
            raise GroupInUseError(
                "; ".join(running_message(stream, group, query, holder) for query, holder in held.items())
            )
        replies = transact(server, commands)
        if replies is not None:
            return replies
