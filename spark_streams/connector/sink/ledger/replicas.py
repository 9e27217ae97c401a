"""Waiting for replicas (option waitReplicas).

A task waits once, at its end. WAIT covers only the writes of its own connection. After a reconnection the master may be
another server, which may lack chunks. So the task first requires that the server has all its marks
(Delivery.require_written), and fails otherwise: another attempt writes what is missing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from spark_streams.connector.errors import ReplicationError
from spark_streams.connector.wire.connection.connection import Connection
from spark_streams.connector.wire.connection.server import Server


def wait_for_replicas(server: Server, replicas: int, streams: Iterable[bytes]) -> None:
    """Wait until this many replicas have all writes of these connections to the streams; in a cluster, the replicas of
    each node that holds one of the streams. Raises ReplicationError, ServerError."""
    for node, _ in server.parts(list(streams), lambda stream: stream):
        _wait(node, replicas)


def _wait(server: Connection, replicas: int) -> None:
    patience = server.address.patience
    seconds, until = patience.replicas, time.monotonic() + patience.replicas
    have = 0
    # The server sends nothing while it waits. Several short WAITs show whether it is unreachable or waiting.
    while have < replicas and (remaining := until - time.monotonic()) > 0:
        have = server.execute("WAIT", replicas, max(1, round(1000 * min(remaining, patience.reply / 2))))
    if have < replicas:
        raise ReplicationError(
            f"{have} of {replicas} replicas (waitReplicas) of {server.address} acknowledged the entries within "
            f"{seconds:.3g} s. The entries are written: a retry with delivery=exactly-once does not write them again, "
            "a retry with at-least-once does. Start the missing replicas, or set waitReplicas lower"
        )
