"""A master that is being replaced is left at once: a thread for each sentinel listens to what it publishes.

Without that a connection to the old master lives for ten seconds after a `SENTINEL FAILOVER`, until it is told that it
is a replica, and all that it has acknowledged since is lost (docs/internals/facts.md, R30). The threads end with the
last connection that they are for, and have nothing to do where there is no failover.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import weakref

import hiredis
import redis

from spark_streams.wire.address import server_url
from spark_streams.wire.address.address import Address
from spark_streams.wire.address.redis_py import opened, socket_of
from spark_streams.wire.address.server_url import Node
from spark_streams.wire.connection.connection import Connection, ReplyError, pack
from spark_streams.wire.topology.sentinel import ANSWER_WITHIN, Named, UnknownMasterError, ask

# A replica is being chosen; it is promoted; the configuration has changed.
_EVENTS = ("+failover-state-select-slave", "+promoted-slave", "+switch-master")
_log = logging.getLogger("spark_streams.wire")
_LOOK_UP = 1.0  # seconds: whether anybody is connected still, whether a sentinel that was away is back
_LISTEN = 60.0  # seconds on one connection: one that is dead looks like one on which nothing is published


class SentinelWatch:
    """The connections to the master of one address, and who listens for them. For any thread."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._connections: weakref.WeakKeyDictionary[Connection, Named] = weakref.WeakKeyDictionary()
        self._listening: set[Node] = set()
        self._deaf: set[Node] = set()  # sentinels at which one may not listen, and it was said

    def add(self, server: Connection, named: Named) -> None:
        """This connection is abandoned once its master is being replaced. named: what was said of that master."""
        with self._lock:
            self._connections[server] = named
            missing = [node for node in self._address.nodes if node not in self._listening]
            self._listening |= set(missing)
        for node in missing:
            threading.Thread(target=self._listen, args=(node,), name="rstream-sentinel", daemon=True).start()

    def _listen(self, node: Node) -> None:
        while self._is_needed_by(node):
            # A sentinel that is away is no reason to stop: the others publish the same.
            with contextlib.suppress(redis.RedisError, OSError, UnknownMasterError):
                try:
                    self._hear(node)
                except ReplyError as error:
                    self._say_once(node, error)
            time.sleep(_LOOK_UP)

    def _say_once(self, node: Node, error: ReplyError) -> None:
        with self._lock:
            if node in self._deaf:
                return
            self._deaf.add(node)
        _log.warning(
            "the sentinel %s:%s does not let its user listen (%s): a master that is replaced while it lives is left "
            "late, and what it takes till then is lost; give that user the rights +sentinel +subscribe &*", *node, error
        )  # fmt: skip

    def _is_needed_by(self, node: Node) -> bool:
        """Whether there are connections; where there are none, its thread ends."""
        with self._lock:
            needed = any(server.is_open for server in self._connections)
            if not needed:
                self._listening.discard(node)
            return needed

    def _hear(self, node: Node) -> None:
        """Listen on one connection, for a while. Raises what `ask` raises."""
        connection = opened(server_url.of_sentinel(self._address.url, node), _LOOK_UP, ANSWER_WITHIN)
        try:
            connected = socket_of(connection)
            connected.sendall(pack("SUBSCRIBE", *_EVENTS))
            reader, until = hiredis.Reader(replyError=ReplyError), time.monotonic() + _LISTEN
            while time.monotonic() < until and any(server.is_open for server in self._known()):
                with contextlib.suppress(TimeoutError):
                    data = connected.recv(4096)
                    if not data:
                        return
                    reader.feed(data)
                heard = False
                while (said := reader.gets()) is not False:
                    if isinstance(said, ReplyError):
                        raise said
                    heard = True  # the answer to SUBSCRIBE, too: something may have happened before it
                if heard:
                    self._leave(ask(self._address, node))
        finally:
            connection.disconnect()  # type: ignore[no-untyped-call]  # redis-py leaves it untyped

    def _known(self) -> dict[Connection, Named]:
        with self._lock:
            return dict(self._connections)

    def _leave(self, now: Named) -> None:
        for server, named in self._known().items():
            if now.replaces(named):
                server.abandon()


_lock = threading.Lock()
_watches: dict[str, SentinelWatch] = {}


def watch(address: Address, server: Connection, named: Named) -> None:
    """Have a connection to the master of this address abandoned once that is being replaced."""
    with _lock:
        found = _watches.setdefault(address.url, SentinelWatch(address))
    found.add(server, named)
