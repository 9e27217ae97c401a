"""The slot map of a cluster: one map for each address in a process, read with CLUSTER SLOTS.

The map is read again for a caller that repeats nothing, after an error that shows it wrong (MOVED, a lost node), and
once a second by the watch (`ClusterWatch`). A node that was cut off or stood still reports an old state: an answer
counts if its epoch is not below one that was seen, and a node that reports the cluster as down is used last.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from spark_streams.base.numbers import parse_number
from spark_streams.connector import errors
from spark_streams.connector.keys import SLOTS
from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connection import Connection, Reply, ReplyError
from spark_streams.connector.wire.replies import info
from spark_streams.connector.wire.server_url import Node

CONNECTED_WITHIN = 2.0  # seconds
ANSWER_WITHIN = 1.0  # seconds, for CLUSTER SLOTS
_FRESH_ENOUGH = 0.02  # seconds: a newer map is not read again for another caller that finds it wrong
_ASK = (("CLUSTER", "SLOTS"), ("CLUSTER", "INFO"))


def connect_to_node(address: Address, node: Node, within: float = math.inf) -> Connection:
    """Return a connection to one node. within: seconds of silence allowed.

    Connecting may take CONNECTED_WITHIN at most, because a node that stands still accepts connections (R32) and may
    have been replaced. Raises what Connection raises.
    """
    node_address, reply = address.node(*node), min(within, address.patience.reply)
    patience = replace(node_address.patience, reply=min(reply, CONNECTED_WITHIN))
    connection = Connection(address, replace(node_address, patience=patience))
    connection.may_be_silent_for(reply)
    return connection


def unreachable_reason(address: Address, error: errors.RStreamError) -> str:
    """Return the reason why a node is unreachable, without the part about the whole address."""
    head, tail = f"no stream server answers at {address}: ", "; start one there, or set url (or RSTREAM_URL)"
    return error.message.removeprefix(head).removesuffix(tail)


@dataclass(frozen=True)
class SlotMap:
    owners: tuple[Node | None, ...] = field(repr=False)  # by slot; None: no node owns it
    masters: tuple[Node, ...]  # in the order of their slots
    followers: Mapping[Node, tuple[Node, ...]]  # the replicas of each master
    is_ok: bool  # the node sees a complete cluster
    epoch: int  # 0: the user may not read it

    @classmethod
    def read(cls, source: Node, slots: Reply, cluster_info: Reply) -> SlotMap:
        """Read the replies to CLUSTER SLOTS and CLUSTER INFO.

        source: the node that answers; a node without a host is itself.
        """
        owners: list[Node | None] = [None] * SLOTS
        followers: dict[Node, tuple[Node, ...]] = {}
        for first, last, *nodes in sorted(slots, key=lambda slot_range: slot_range[0]):
            slot_nodes = [_node(source, node_reply) for node_reply in nodes]
            owners[first : last + 1] = [slot_nodes[0]] * (last + 1 - first)
            followers[slot_nodes[0]] = tuple(slot_nodes[1:])
        facts = info(cluster_info) if isinstance(cluster_info, bytes) else {}
        is_ok = facts.get("cluster_state", "ok") == "ok"
        return cls(
            tuple(owners), tuple(followers), followers, is_ok, parse_number(facts.get("cluster_current_epoch", "")) or 0
        )

    @property
    def replicas(self) -> tuple[Node, ...]:
        return tuple(dict.fromkeys(node for replicas in self.followers.values() for node in replicas))

    def with_owners(self, moved: Mapping[int, Node]) -> SlotMap:
        """Return the map with other owners of these slots."""
        owners = list(self.owners)
        for slot, node in moved.items():
            owners[slot] = node
        return replace(self, owners=tuple(owners))


def _node(source: Node, reply: Reply) -> Node:
    """Return (host, port) of [host, port, id …]; without a host (or with `?`) it is the node that answers."""
    host = b"" if reply[0] is None else reply[0]
    return (source[0] if host in (b"", b"?") else host.decode(), reply[1])


class Topology:
    """The slot map of one address. For any thread."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.watch = ClusterWatch(self)
        self._lock = threading.RLock()  # protects the attributes below, except the map, which is replaced as a whole
        self._map: SlotMap | None = None
        self._is_wrong = True
        self._read = 0.0  # time of the last read
        self._moved: dict[int, Node] = {}  # moves reported since the last read, of any age: a node may have left
        self._last_answering: tuple[Node, Connection] | None = None  # the last node that has answered

    def node_of(self, slot: int) -> Node:
        """Return the owner of a slot.

        Raises ServerUnreachableError if no node answers, ServerReplyError (CLUSTERDOWN) if no node owns the slot,
        LoginError, NotPermittedError, UnsupportedError if the server is no cluster.
        """
        owner = self._current_map().owners[slot]
        if owner is None:
            raise errors.ServerReplyError(f"no node of the cluster at {self.address} owns slot {slot}", "CLUSTERDOWN")
        return owner

    def masters(self) -> list[Node]:
        """Return all nodes that own slots. Raises as `node_of`."""
        return list(self._current_map().masters)

    def forget(self) -> None:
        """Mark the map as wrong: it is read again before its next use."""
        self._is_wrong = True

    def moved(self, slot: int, node: Node) -> None:
        """Record the new owner of a slot, as a node reported it."""
        with self._lock:
            self._moved[slot] = node
            if self._map is not None:
                self._map = self._map.with_owners({slot: node})
            self._is_wrong = True

    def refresh(self) -> SlotMap:
        """Read the map again and return it. Raises as `node_of`."""
        with self._lock:
            self._is_wrong = False
            moved, self._moved = self._moved, {}
            try:
                slot_map = self._newest()
            except errors.RStreamError:
                self._is_wrong = True
                raise
            self._map = slot_map.with_owners({slot: node for slot, node in moved.items() if node in slot_map.masters})
            self._read = time.monotonic()
            return self._map

    def _current_map(self) -> SlotMap:
        slot_map = self._map
        if slot_map is not None and not self._is_wrong:
            return slot_map
        with self._lock:
            if self._map is not None and (not self._is_wrong or time.monotonic() - self._read < _FRESH_ENOUGH):
                return self._map
            return self.refresh()

    def _newest(self) -> SlotMap:
        """Return the report of a node that is not behind the known map; if all are, the newest. Raises as `node_of`."""
        seen = 0 if self._map is None else self._map.epoch
        answers: list[SlotMap] = []
        failed: dict[Node, errors.RStreamError] = {}
        for node in self._candidates():
            try:
                answer = self._ask(node)
            except (errors.ServerUnreachableError, errors.ServerReplyError) as error:
                if isinstance(error, errors.NotPermittedError):
                    raise
                failed[node] = error
                continue
            if answer.is_ok and answer.epoch >= seen:
                return answer
            answers.append(answer)
        if answers:
            return max(answers, key=lambda slot_map: (slot_map.epoch, slot_map.is_ok))
        refused = [error for error in failed.values() if isinstance(error, errors.ServerReplyError)]
        if refused:
            raise refused[0]
        failures = "; ".join(unreachable_reason(self.address, error) for error in failed.values())
        raise errors.ServerUnreachableError(
            f"no node of a cluster answers at {self.address}: {failures}; start them, or correct the url"
        )

    def _candidates(self) -> list[Node]:
        """Return all known nodes, the last one that has answered first."""
        last = [self._last_answering[0]] if self._last_answering is not None else []
        known_nodes = [] if self._map is None else [*self._map.masters, *self._map.replicas]
        return list(dict.fromkeys([*last, *known_nodes, *self.address.nodes]))

    def _ask(self, node: Node) -> SlotMap:
        """Read the map of one node. Raises ServerUnreachableError, ServerReplyError, UnsupportedError."""
        last, self._last_answering = self._last_answering, None  # interrupted, it has an unread answer
        if last is not None and last[0] != node:
            last[1].close()
            last = None
        try:
            server = connect_to_node(self.address, node, ANSWER_WITHIN) if last is None else last[1]
            slots, cluster_info = server.pipeline(_ASK)
        except errors.ServerUnreachableError:
            if last is not None:
                return self._ask(node)  # a connection opened long ago may have ended since
            raise
        if isinstance(slots, ReplyError):
            server.close()
            if "cluster support disabled" in str(slots):
                raise errors.UnsupportedError(
                    f"the server at {self.address} is not a node of a cluster: write redis:// in place of "
                    "redis+cluster:// (rediss:// in place of rediss+cluster://)"
                )
            raise server.error_of(slots, _ASK[0])
        self._last_answering = (node, server)
        return SlotMap.read(node, slots, cluster_info)


# -- a thread per cluster reads the slot map once a second, and closes connections to nodes that are no masters --------

# Without it, a connection to a master that stands still would stay open until its reply times out. What that node
# writes when it continues, before it learns of the new master, is lost. The thread ends with the last connection.

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
            with contextlib.suppress(errors.RStreamError):
                masters = set(self._topology.refresh().masters)
                for connection, node in connections.items():
                    if node not in masters:
                        connection.abandon()


# -- one topology for each address -------------------------------------------------------------------------------------

_lock = threading.Lock()
_topologies: dict[Address, Topology] = {}


def topology_of(address: Address) -> Topology:
    """Return this process' topology of a cluster's address."""
    with _lock:
        return _topologies.setdefault(address, Topology(address))


def forget(address: Address) -> None:
    """Mark the map of this address as wrong, if there is one."""
    with _lock:
        topology = _topologies.get(address)
    if topology is not None:
        topology.forget()
