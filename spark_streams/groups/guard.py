"""Changes that are only made while no query lives where they are made.

    WATCH the leases   GET the leases   → somebody lives there: refused
    MULTI   the change   EXEC           → a lease was taken, or ran out, since: again

A query takes its lease before it looks at its group. So either it sees the group as the change has left it, or the
change is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_streams.errors import GroupInUseError
from spark_streams.groups.group_snapshot import lives, living
from spark_streams.source.group.consumer_lease import lease_key
from spark_streams.wire.connection.connection import Argument, Reply
from spark_streams.wire.connection.server import Server
from spark_streams.wire.lease import Processes
from spark_streams.wire.replies.multi_exec import transact


def change(
    server: Server,
    stream: str,
    group: str,
    queries: Sequence[str],
    commands: Sequence[Sequence[Argument]],
    processes: Processes | None = None,
) -> list[Reply]:
    """Carry out commands as one transaction, all of keys in the stream's slot, while none of these queries lives; their
    replies. Raises GroupInUseError, and the named error of the first reply that is one."""
    keys = [lease_key(stream, group, query) for query in queries]
    while True:
        watch: list[Sequence[Argument]] = [("WATCH", *keys)] if keys else []  # a name that is no text is no query's
        leases = server.execute_all([*watch, *[("GET", key) for key in keys]])[len(watch) :]
        held = living(server, queries, leases, processes or Processes())
        if held:
            server.execute("UNWATCH")
            raise GroupInUseError("; ".join(lives(stream, group, query, holder) for query, holder in held.items()))
        replies = transact(server, commands)
        if replies is not None:
            return replies
