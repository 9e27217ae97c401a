"""Connects to the servers of an address, whatever its kind is."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable

from spark_streams.connector.errors import RStreamError, ServerReplyError, ServerUnreachableError
from spark_streams.connector.wire.address.address import Address
from spark_streams.connector.wire.connection.connection import Connection, Reply, ReplyError
from spark_streams.connector.wire.connection.server import Server
from spark_streams.connector.wire.replies.replies import info

# -- connections to a server that is no longer the master, behind an address that leads to the new one -----------------

# A master that becomes a replica keeps its connections, and answers reads from its data. If its link to the new master
# is dead, that data is old for ever. A connection over which something is written learns it (READONLY), and so does a
# blocking read (UNBLOCKED). What one of them learns ends the others of this process: they connect again, and the
# address leads to the new master. A connection that only reads asks for the role now and then (`RoleCheck`).
#
# Sentinels and clusters tell of a new master themselves (wire.topology).

_LEARNT = ("READONLY", "UNBLOCKED")  # codes of replies of a server that has become a replica
_QUESTIONS = (("ROLE",), ("INFO", "replication"))  # the second if the server or the user's rights refuse the first

_lock = threading.Lock()
_open: dict[str, weakref.WeakSet[Connection]] = {}  # by URL


def register(connection: Connection) -> None:
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


# -- connecting --------------------------------------------------------------------------------------------------------


def connect(address: Address, repeats: bool = False) -> Server:
    """Return a new connection, or the connections to a cluster; usable as a context manager.

    repeats: the caller repeats a step if a slot of a cluster has moved, and gets the error; else redirections are
    followed.

    Raises ServerUnreachableError if no server answers, LoginError if the server refuses the login, NotPermittedError,
    ServerReplyError while a master is being replaced, UnsupportedError if an address of a cluster leads to none.
    """
    if address.is_cluster:
        from spark_streams.connector.wire.topology.cluster import Cluster

        return Cluster(address, follows=not repeats)
    if address.asks_sentinels:
        from spark_streams.connector.wire.topology.sentinel import connect_to_master, watch

        server, named = connect_to_master(address)
        watch(address, server, named)
        return server
    connection = Connection(address)
    register(connection)
    return connection


def invalidate_topology(address: Address) -> None:
    """Refresh the topology before its next use: a connection to this address was lost or redirected."""
    if address.is_cluster:
        from spark_streams.connector.wire.topology.topology import forget

        forget(address)


# -- a connection for repeated reads: it connects when it is used, and again after it broke ----------------------------

_AT_ONCE = 1.0  # seconds: a failure after a longer time means a silent server, not a connection that broke before


class KeptConnection:
    """A connection that is opened again after it broke. Not safe for two threads at once.

    trouble: receives the error when the server stops answering, and again if the kind of error changes."""

    def __init__(self, address: Address, trouble: Callable[[RStreamError], None]) -> None:
        self.address = address
        self._trouble = trouble
        self._server: Server | None = None
        self.failure: RStreamError | None = None  # of the last request; None: the server answered

    @property
    def answers(self) -> bool:
        """Whether the server answered the last request."""
        return self.failure is None

    def use(self, act: Callable[[Server], None]) -> bool:
        """Call `act` with the connection, and return whether the server answered. If the connection broke since the
        last call, connect again once. `act` must be safe to repeat."""
        for last in (False, True):
            old, began = self._server is not None, time.monotonic()
            try:
                if self._server is None:
                    self._server = connect(self.address)
                self._server.renew_login()
                act(self._server)
            except RStreamError as error:
                self.close()
                is_quick = time.monotonic() - began < _AT_ONCE
                if isinstance(error, ServerUnreachableError) and old and is_quick and not last:
                    continue
                before, self.failure = self.failure, error
                if before is None or before.condition != error.condition:
                    self._trouble(error)
                return False
            self.failure = None
            return True
        return False

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
