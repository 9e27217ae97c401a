"""Closes connections to a master that is being replaced: a thread per sentinel listens to its events.

Without it, a connection to the old master lives for ten seconds after `SENTINEL FAILOVER`, until the server becomes a
replica, and all writes that it has acknowledged since are lost (docs/internals/facts.md, R30). The threads end with the
last connection that they watch, and are idle if there is no failover.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import weakref

import hiredis
import redis

from spark_streams.connector.wire.address import server_url
from spark_streams.connector.wire.address.address import Address
from spark_streams.connector.wire.address.redis_py import open_connection, socket_of
from spark_streams.connector.wire.address.server_url import Node
from spark_streams.connector.wire.connection.connection import Connection, ReplyError, pack
from spark_streams.connector.wire.topology.sentinel import ANSWER_WITHIN, Named, UnknownMasterError, ask

# A replica is being selected; it is promoted; the configuration has changed.
_EVENTS = ("+failover-state-select-slave", "+promoted-slave", "+switch-master")
_log = logging.getLogger("spark_streams.connector.wire")
_LOOK_UP = 1.0  # seconds between two checks for open connections, and for a sentinel that was unavailable
_LISTEN = 60.0  # seconds on one connection: a dead connection looks like one without events


class SentinelWatch:
    """The connections to the master of one address, and the threads that listen for it. For any thread."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._connections: weakref.WeakKeyDictionary[Connection, Named] = weakref.WeakKeyDictionary()
        self._listening: set[Node] = set()
        self._refusing: set[Node] = set()  # sentinels that refuse SUBSCRIBE, already logged

    def add(self, server: Connection, named: Named) -> None:
        """Register a connection; it is closed when its master is being replaced. named: the report of that master."""
        with self._lock:
            self._connections[server] = named
            missing = [node for node in self._address.nodes if node not in self._listening]
            self._listening |= set(missing)
        for node in missing:
            threading.Thread(target=self._listen, args=(node,), name="rstream-sentinel", daemon=True).start()

    def _listen(self, node: Node) -> None:
        while self._is_needed_by(node):
            # An unavailable sentinel does not end the thread: the others publish the same events.
            with contextlib.suppress(redis.RedisError, OSError, UnknownMasterError):
                try:
                    self._listen_once(node)
                except ReplyError as error:
                    self._warn_once(node, error)
            time.sleep(_LOOK_UP)

    def _warn_once(self, node: Node, error: ReplyError) -> None:
        with self._lock:
            if node in self._refusing:
                return
            self._refusing.add(node)
        _log.warning(
            "the sentinel %s:%s does not let its user listen (%s): a master that is replaced while it lives is left "
            "late, and what it takes till then is lost; give that user the rights +sentinel +subscribe &*", *node, error
        )  # fmt: skip

    def _is_needed_by(self, node: Node) -> bool:
        """Whether there are open connections; if not, the sentinel's thread ends."""
        with self._lock:
            needed = any(server.is_open for server in self._connections)
            if not needed:
                self._listening.discard(node)
            return needed

    def _listen_once(self, node: Node) -> None:
        """Listen on one connection for a while. Raises what `ask` raises."""
        connection = open_connection(server_url.of_sentinel(self._address.url, node), _LOOK_UP, ANSWER_WITHIN)
        try:
            connected = socket_of(connection)
            connected.sendall(pack("SUBSCRIBE", *_EVENTS))
            reader, until = hiredis.Reader(replyError=ReplyError), time.monotonic() + _LISTEN
            while time.monotonic() < until and any(server.is_open for server in self._open_connections()):
                with contextlib.suppress(TimeoutError):
                    data = connected.recv(4096)
                    if not data:
                        return
                    reader.feed(data)
                has_news = False
                while (message := reader.gets()) is not False:
                    if isinstance(message, ReplyError):
                        raise message
                    has_news = True  # also the reply to SUBSCRIBE: the master may have changed before it
                if has_news:
                    self._leave(ask(self._address, node))
        finally:
            connection.disconnect()  # type: ignore[no-untyped-call]  # redis-py leaves it untyped

    def _open_connections(self) -> dict[Connection, Named]:
        with self._lock:
            return dict(self._connections)

    def _leave(self, now: Named) -> None:
        for server, named in self._open_connections().items():
            if now.replaces(named):
                server.abandon()


_lock = threading.Lock()
_watches: dict[str, SentinelWatch] = {}


def watch(address: Address, server: Connection, named: Named) -> None:
    """Close a connection to the master of this address when that master is being replaced."""
    with _lock:
        sentinel_watch = _watches.setdefault(address.url, SentinelWatch(address))
    sentinel_watch.add(server, named)
