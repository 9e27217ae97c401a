"""Waiting for replicas (option waitReplicas).

WAIT speaks of what its own connection has written before. Where the connection was made anew since, the master may be
another one, which has less: what was written and not acknowledged yet is looked for there, and written again where it
is missing (chunk_writer.py). So that it can be, replicas are waited for every few chunks.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from spark_streams.errors import ReplicationError
from spark_streams.wire.connection.connection import Connection
from spark_streams.wire.connection.server import Server

WINDOW = 8  # chunks that are kept in memory until replicas have them


def wait_for_replicas(server: Server, replicas: int, streams: Iterable[bytes]) -> None:
    """Until so many replicas have all that these connections have written to the streams; in a cluster each node that
    has some of them is asked for its own. Raises ReplicationError, ServerError."""
    for there, _ in server.parts(list(streams), lambda stream: stream):
        _wait(there, replicas)


def _wait(server: Connection, replicas: int) -> None:
    patience = server.address.patience
    seconds, until = patience.replicas, time.monotonic() + patience.replicas
    have = 0
    # The server says nothing meanwhile: in turns, so that one that is away is told from one that waits.
    while have < replicas and (left := until - time.monotonic()) > 0:
        have = server.execute("WAIT", replicas, max(1, round(1000 * min(left, patience.reply / 2))))
    if have < replicas:
        raise ReplicationError(
            f"{have} of {replicas} replicas (waitReplicas) of {server.address} acknowledged the entries within "
            f"{seconds:.3g} s: they are written, and a retry under delivery=exactly-once writes them no more "
            "(one under at-least-once does); bring the replicas back, or ask for fewer"
        )
