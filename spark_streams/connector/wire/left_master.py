"""Connections to a server that is no longer the master, behind an address that leads to the new one.

A master that becomes a replica keeps its connections, and answers reads from its data. If its link to the new master is
dead, that data is old for ever. A connection over which something is written learns it (READONLY), and so does a
blocking read (UNBLOCKED). What one of them learns ends the others of this process: they connect again, and the address
leads to the new master. A connection that only reads asks for the role now and then (`RoleCheck`).

Sentinels and clusters tell of a new master themselves (wire.topology).
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

from spark_streams.connector.errors import ServerReplyError
from spark_streams.connector.wire.address.address import Address
from spark_streams.connector.wire.connection.connection import Connection, Reply, ReplyError
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.replies import info

_LEARNT = ("READONLY", "UNBLOCKED")  # codes of replies of a server that has become a replica
_QUESTIONS = (("ROLE",), ("INFO", "replication"))  # the second if the server or the user's rights refuse the first

_lock = threading.Lock()
_open: dict[str, weakref.WeakSet[Connection]] = {}  # by URL


def register(connection: Connection) -> None:
    """Register a new connection of a server's address."""
    with _lock:
        _open.setdefault(connection.address.url, weakref.WeakSet()).add(connection)


def leave_if_replica(address: Address, error: Exception) -> None:
    """End all connections to the address if this error shows that their server has become a replica."""
    if isinstance(error, ReplyError | ServerReplyError) and error.code in _LEARNT:
        leave(address)


def leave(address: Address, but: Server | None = None) -> None:
    """End all connections to the address, also those of other threads. but: stays."""
    with _lock:
        connections = [connection for connection in _open.get(address.url, ()) if connection is not but]
    for connection in connections:
        connection.abandon()


class RoleCheck:
    """Asks at intervals whether a server is still the master. now: a monotonic clock, in seconds."""

    def __init__(self, now: Callable[[], float], interval: float) -> None:
        self._now, self._interval = now, interval
        self._asked = now()
        self._questions = list(_QUESTIONS)  # those that were not refused

    def is_due(self) -> bool:
        """Whether the interval is over. Never, if the user may not ask."""
        return bool(self._questions) and self._now() - self._asked >= self._interval

    def require_master(self, server: Server) -> None:
        """Raise ServerReplyError (READONLY) if the server is a replica. In a cluster nothing is asked."""
        while self._questions and not server.address.is_cluster:
            [reply] = server.pipeline([self._questions[0]])
            if not isinstance(reply, ReplyError):
                _require_master(server, reply)
                break
            self._questions.pop(0)
        self._asked = self._now()


def _require_master(server: Server, reply: Reply) -> None:
    facts = info(reply) if isinstance(reply, bytes) else {"role": reply[0].decode()}
    if facts.get("role") in ("slave", "replica"):
        raise ServerReplyError(
            f"the server at {server.address} has become a replica, and its data may be old: the address must lead to "
            "the master",
            "READONLY",
        )
