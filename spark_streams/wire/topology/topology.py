"""Which node of a cluster has which slot: one map for each address in a process, read with CLUSTER SLOTS.

The map is read again when somebody finds it wrong (MOVED, a node that is lost), and by the watch
(wire.topology.cluster_watch) once a second. A node that was cut off or stood still tells of a past: an answer counts
where its epoch is not below one that was seen, and a node that says that the cluster is down is believed last.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from spark_streams.errors import (
    NotPermittedError,
    RStreamError,
    ServerReplyError,
    ServerUnreachableError,
    UnsupportedError,
)
from spark_streams.model.keys import SLOTS
from spark_streams.model.numbers import parse_number
from spark_streams.wire.address.address import Address
from spark_streams.wire.address.server_url import Node
from spark_streams.wire.connection.connection import Connection, Reply, ReplyError
from spark_streams.wire.replies.replies import info

CONNECTED_WITHIN = 2.0  # seconds
ANSWER_WITHIN = 1.0  # seconds, for CLUSTER SLOTS
_ENOUGH = 0.02  # seconds: a map that is no older is not read again for one more who finds it wrong
_ASK = (("CLUSTER", "SLOTS"), ("CLUSTER", "INFO"))


def connect_to_node(address: Address, node: Node, within: float = math.inf) -> Connection:
    """A connection to one node. within: seconds that it may be silent; while it is connected to no more than
    CONNECTED_WITHIN, for one that stands still takes connections (R32), and may be replaced by now. Raises what
    Connection raises."""
    one, reply = address.node(*node), min(within, address.patience.reply)
    patience = replace(one.patience, reply=min(reply, CONNECTED_WITHIN))
    made = Connection(address, replace(one, patience=patience))
    made.may_be_silent_for(reply)
    return made


def why_not(address: Address, error: RStreamError) -> str:
    """Why one node is not reached, without what is said of the whole address."""
    head, tail = f"no stream server answers at {address}: ", "; start one there, or set url (or RSTREAM_URL)"
    return error.message.removeprefix(head).removesuffix(tail)


@dataclass(frozen=True)
class SlotMap:
    """What a node says. owners: by slot, None where nobody has it; masters: in the order of their slots; followers: the
    replicas of each; is_ok: whether the node sees a whole cluster; epoch: 0 where it may not be asked."""

    owners: tuple[Node | None, ...] = field(repr=False)
    masters: tuple[Node, ...]
    followers: Mapping[Node, tuple[Node, ...]]
    is_ok: bool
    epoch: int

    @classmethod
    def read(cls, asked: Node, slots: Reply, told: Reply) -> SlotMap:
        """From the replies to CLUSTER SLOTS and CLUSTER INFO. asked: who answers; a node without a name is itself."""
        owners: list[Node | None] = [None] * SLOTS
        followers: dict[Node, tuple[Node, ...]] = {}
        for first, last, *nodes in sorted(slots, key=lambda one: one[0]):
            found = [_node(asked, one) for one in nodes]
            owners[first : last + 1] = [found[0]] * (last + 1 - first)
            followers[found[0]] = tuple(found[1:])
        facts = info(told) if isinstance(told, bytes) else {}
        is_ok = facts.get("cluster_state", "ok") == "ok"
        return cls(
            tuple(owners), tuple(followers), followers, is_ok, parse_number(facts.get("cluster_current_epoch", "")) or 0
        )

    @property
    def replicas(self) -> tuple[Node, ...]:
        """All of them."""
        return tuple(dict.fromkeys(node for some in self.followers.values() for node in some))

    def with_owners(self, moved: Mapping[int, Node]) -> SlotMap:
        """The same, with other owners of these slots."""
        owners = list(self.owners)
        for slot, node in moved.items():
            owners[slot] = node
        return replace(self, owners=tuple(owners))


def _node(asked: Node, told: Reply) -> Node:
    """(host, port) of [host, port, id …]: without a host (or `?`, where it has none to be known by) it is the one that
    was asked."""
    host = b"" if told[0] is None else told[0]
    return (asked[0] if host in (b"", b"?") else host.decode(), told[1])


class Topology:
    """The map of one address. For any thread."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._lock = threading.Lock()  # over all below but the map, which is replaced as a whole
        self._map: SlotMap | None = None
        self._is_wrong = True
        self._read = 0.0  # when
        self._moved: dict[int, Node] = {}  # what nodes said since the map was read
        self._asked: tuple[Node, Connection] | None = None  # the last one that has answered

    def node_of(self, slot: int) -> Node:
        """Who has the slot. Raises ServerUnreachableError where no node answers, ServerReplyError (CLUSTERDOWN) where
        nobody has it, LoginError, NotPermittedError, UnsupportedError where it is no cluster."""
        owner = self._known().owners[slot]
        if owner is None:
            raise ServerReplyError(f"no node of the cluster at {self.address} has slot {slot}", "CLUSTERDOWN")
        return owner

    def masters(self) -> list[Node]:
        """All nodes that have slots. Raises as above."""
        return list(self._known().masters)

    def forget(self) -> None:
        """The map was found wrong: it is read again before it is used."""
        self._is_wrong = True

    def moved(self, slot: int, node: Node) -> None:
        """A node says who has a slot now."""
        with self._lock:
            self._moved[slot] = node
            if self._map is not None:
                self._map = self._map.with_owners({slot: node})
            self._is_wrong = True

    def look(self) -> SlotMap:
        """The map as it is now. Raises as above."""
        with self._lock:
            return self._look()

    def _known(self) -> SlotMap:
        known = self._map
        if known is not None and not self._is_wrong:
            return known
        with self._lock:
            if self._map is not None and (not self._is_wrong or time.monotonic() - self._read < _ENOUGH):
                return self._map
            return self._look()

    def _look(self) -> SlotMap:
        self._is_wrong = False
        moved, self._moved = self._moved, {}
        try:
            found = self._newest()
        except RStreamError:
            self._is_wrong = True
            raise
        self._map = found.with_owners(moved) if moved else found
        self._read = time.monotonic()
        return self._map

    def _newest(self) -> SlotMap:
        """What a node says that is not behind what is known; where all are, the one that is least. Raises as above."""
        seen = 0 if self._map is None else self._map.epoch
        answers: list[SlotMap] = []
        failed: dict[Node, RStreamError] = {}
        for node in self._candidates():
            try:
                answer = self._ask(node)
            except (ServerUnreachableError, ServerReplyError) as error:
                if isinstance(error, NotPermittedError):
                    raise
                failed[node] = error
                continue
            if answer.is_ok and answer.epoch >= seen:
                return answer
            answers.append(answer)
        if answers:
            return max(answers, key=lambda one: (one.epoch, one.is_ok))
        refused = [error for error in failed.values() if isinstance(error, ServerReplyError)]
        if refused:
            raise refused[0]
        each = "; ".join(why_not(self.address, error) for error in failed.values())
        raise ServerUnreachableError(
            f"no node of a cluster answers at {self.address}: {each}; start them, or mend the url"
        )

    def _candidates(self) -> list[Node]:
        """All nodes that are known, the last one that has answered first."""
        last = [self._asked[0]] if self._asked is not None else []
        known = [] if self._map is None else [*self._map.masters, *self._map.replicas]
        return list(dict.fromkeys([*last, *known, *self.address.nodes]))

    def _ask(self, node: Node) -> SlotMap:
        """Raises ServerUnreachableError, ServerReplyError and kin, UnsupportedError."""
        if self._asked is not None and self._asked[0] != node:
            self._asked[1].close()
            self._asked = None
        fresh = self._asked is None
        try:
            server = connect_to_node(self.address, node, ANSWER_WITHIN) if self._asked is None else self._asked[1]
            slots, told = server.pipeline(_ASK)
        except ServerUnreachableError:
            self._asked = None
            if not fresh:
                return self._ask(node)  # what was connected long ago may have ended since
            raise
        if isinstance(slots, ReplyError):
            server.close()
            self._asked = None
            if "cluster support disabled" in str(slots):
                raise UnsupportedError(
                    f"the server at {self.address} is not a node of a cluster: write redis:// in place of "
                    "redis+cluster:// (rediss:// in place of rediss+cluster://)"
                )
            raise server.error_of(slots, _ASK[0])
        self._asked = (node, server)
        return SlotMap.read(node, slots, told)


_lock = threading.Lock()
_topologies: dict[Address, Topology] = {}


def topology_of(address: Address) -> Topology:
    """The one of this process for a cluster's address."""
    with _lock:
        return _topologies.setdefault(address, Topology(address))


def forget(address: Address) -> None:
    """The map of this address, if there is one, was found wrong."""
    with _lock:
        known = _topologies.get(address)
    if known is not None:
        known.forget()
