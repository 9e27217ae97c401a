"""A node that is no longer a master is left at once: a thread for each cluster looks at the map once a second.

Without that a connection to a master that stands still is kept for as long as a reply may take, and what that does when
it goes on, before it hears that another one is the master now, is lost. The thread ends with the last connection.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref

from spark_streams.errors import RStreamError
from spark_streams.wire.address.server_url import Node
from spark_streams.wire.connection.connection import Connection
from spark_streams.wire.topology.topology import Topology

_EVERY = 1.0  # seconds


class ClusterWatch:
    """The connections to the nodes of one cluster. For any thread."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._lock = threading.Lock()
        self._connections: weakref.WeakKeyDictionary[Connection, Node] = weakref.WeakKeyDictionary()
        self._runs = False

    def add(self, node: Node, connection: Connection) -> None:
        """This connection is abandoned once its node is no master."""
        with self._lock:
            self._connections[connection] = node
            starts, self._runs = not self._runs, True
        if starts:
            threading.Thread(target=self._look_on, name="rstream-cluster", daemon=True).start()

    def _look_on(self) -> None:
        while True:
            time.sleep(_EVERY)
            with self._lock:
                known = {connection: node for connection, node in self._connections.items() if connection.is_open}
                if not known:
                    self._runs = False
                    return
            # Where no node answers, whoever works with the cluster says so.
            with contextlib.suppress(RStreamError):
                masters = set(self._topology.look().masters)
                for connection, node in known.items():
                    if node not in masters:
                        connection.abandon()


_lock = threading.Lock()
_watches: weakref.WeakKeyDictionary[Topology, ClusterWatch] = weakref.WeakKeyDictionary()


def watch(topology: Topology, node: Node, connection: Connection) -> None:
    """Have a connection to a node abandoned once that is no master."""
    with _lock:
        found = _watches.get(topology) or _watches.setdefault(topology, ClusterWatch(topology))
    found.add(node, connection)
