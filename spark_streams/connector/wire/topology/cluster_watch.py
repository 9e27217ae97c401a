"""Closes connections to nodes that are no longer masters: a thread per cluster reads the slot map once a second.

Without it, a connection to a master that stands still would stay open until its reply times out. What that node writes
when it continues, before it learns of the new master, is lost. The thread ends with the last connection.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref

from spark_streams.connector.errors import RStreamError
from spark_streams.connector.wire.address.server_url import Node
from spark_streams.connector.wire.connection.connection import Connection
from spark_streams.connector.wire.topology.topology import Topology

_EVERY = 1.0  # seconds


class ClusterWatch:
    """The connections to the nodes of one cluster. For any thread."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._lock = threading.Lock()
        self._connections: weakref.WeakKeyDictionary[Connection, Node] = weakref.WeakKeyDictionary()
        self._runs = False

    def add(self, node: Node, connection: Connection) -> None:
        """Register a connection; it is closed when its node is no longer a master."""
        with self._lock:
            self._connections[connection] = node
            starts, self._runs = not self._runs, True
        if starts:
            threading.Thread(target=self._watch_masters, name="rstream-cluster", daemon=True).start()

    def _watch_masters(self) -> None:
        while True:
            time.sleep(_EVERY)
            with self._lock:
                connections = {connection: node for connection, node in self._connections.items() if connection.is_open}
                if not connections:
                    self._runs = False
                    return
            # If no node answers, the reader or writer reports it.
            with contextlib.suppress(RStreamError):
                masters = set(self._topology.refresh().masters)
                for connection, node in connections.items():
                    if node not in masters:
                        connection.abandon()


_lock = threading.Lock()
_watches: weakref.WeakKeyDictionary[Topology, ClusterWatch] = weakref.WeakKeyDictionary()


def watch(topology: Topology, node: Node, connection: Connection) -> None:
    """Close a connection when its node is no longer a master."""
    with _lock:
        cluster_watch = _watches.get(topology) or _watches.setdefault(topology, ClusterWatch(topology))
    cluster_watch.add(node, connection)
