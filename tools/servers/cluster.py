"""Redis cluster of three masters and three replicas on loopback ports: start, kill and freeze nodes, move slots."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import redis

from spark_streams.connector.keys import SLOTS, slot_of
from tools.servers.nodes import Nodes
from tools.servers.server import Server, free_port
from tools.waiting import until

NODE_TIMEOUT = 1_000  # milliseconds of silence, then a node may be failing
MASTERS = REPLICAS = 3


class RedisCluster(Nodes):
    """All six processes.

    keys: folder of tests.certificates. The nodes then use TLS among themselves, and on extra ports for clients
    (`secured`). The ports that tests use stay without TLS.
    """

    def __init__(self, *options: str, keys: Path | None = None, program: Path | None = None) -> None:
        self._keys = keys
        self._clients: dict[int, redis.Redis] = {}
        self.ports: list[int] = []
        self._bus: dict[int, int] = {}
        self._tls: dict[int, int] = {}
        super().__init__(*options, program=program)

    def _begin(self) -> None:
        """Start three masters that own all slots, and one replica of each master."""
        for _ in range(MASTERS + REPLICAS):
            self.join()
        first, *other_ports = self.ports
        for port in other_ports:
            self.command(first, "CLUSTER", "MEET", "127.0.0.1", port, self._bus[port])
        share = -(-SLOTS // MASTERS)
        for n in range(MASTERS):
            self.command(self.ports[n], "CLUSTER", "ADDSLOTSRANGE", n * share, min((n + 1) * share, SLOTS) - 1)
        # Before two nodes have shaken hands, CLUSTER NODES lists the other node under a temporary ID.
        ids = {self.id_of(port) for port in self.ports}

        def have_met(port: int) -> bool:
            return ids <= {name for name, _, _ in self.nodes(port).values()}

        until(lambda: all(map(have_met, self.ports)), "the nodes did not meet")
        for n in range(REPLICAS):
            self.command(self.ports[MASTERS + n], "CLUSTER", "REPLICATE", self.id_of(self.ports[n]))
        self.healthy()

    @property
    def url(self) -> str:
        """URL that names three of the nodes."""
        return f"redis+cluster://{','.join(f'127.0.0.1:{port}' for port in self.ports[:3])}"

    def secured(self, login: str) -> str:
        """Return the URL of the TLS ports for a user. login: `name:password`."""
        nodes = ",".join(f"127.0.0.1:{self._tls[port]}" for port in self.ports[:3])
        client_keys = f"ssl_certfile={self._keys}/client.pem&ssl_keyfile={self._keys}/client.key"
        return f"rediss+cluster://{login}@{nodes}?ssl_ca_certs={self._keys}/ca.pem&{client_keys}"

    @property
    def server(self) -> Server:
        """Return the cluster as a `Server`, for the helpers of other tests."""
        return ClusterServer("redis", self.url)

    def client(self, port: int, user: str | None = None, password: str | None = None) -> redis.Redis:
        """The plain client of one process, which is used again."""
        if port not in self._clients:
            self._clients[port] = super().client(port, user, password)
        return self._clients[port]

    def command(self, port: int, *words: Any) -> Any:
        """Send one command to one process, and return its reply."""
        return self.client(port).execute_command(*words)

    def flushed(self) -> None:
        """Delete all keys of all masters."""
        for port in self.masters():
            self.client(port).flushall()

    # -- roles ---------------------------------------------------------------------------------------------------

    def nodes(self, reporting_port: int) -> dict[int, tuple[str, set[str], str]]:
        """Return (ID, flags, ID of the master) of each node by port, as the node at `reporting_port` reports them."""
        nodes = {}
        for line in self.command(reporting_port, "CLUSTER", "NODES").splitlines():
            name, where, flags, master, *_ = line.split(" ")
            port = int(where.partition("@")[0].rpartition(":")[2])
            nodes[port] = (name, set(flags.split(",")), master)
        return nodes

    def id_of(self, port: int) -> str:
        """Return the ID of a node."""
        return str(self.command(port, "CLUSTER", "MYID"))

    def masters(self) -> list[int]:
        """Return the ports of the masters that own slots, as the first node that answers reports them."""
        for port in self.answering(self.ports):
            with contextlib.suppress(redis.RedisError):
                slot_ranges = self.command(port, "CLUSTER", "SLOTS")
                return list(dict.fromkeys(int(slot_range[2][1]) for slot_range in slot_ranges))
        raise AssertionError("no node answers")

    def owner(self, key: str) -> int:
        """Return the port of the master that owns this key's slot."""
        return self.owner_of_slot(slot_of(key.encode()))

    def owner_of_slot(self, slot: int) -> int:
        """Return the port of the slot's owner. The owner's own report wins over the reports of other nodes."""
        owners = []
        for port in self.answering(self.ports):
            with contextlib.suppress(redis.RedisError):
                owners += [(port, owner) for owner in self._reported(port, slot)]
        assert owners, f"no node owns slot {slot}"
        return next((owner for port, owner in owners if owner == port), owners[0][1])

    def _reported(self, port: int, slot: int) -> list[int]:
        """Return the port of the slot's owner as the node at `port` reports it."""
        slots = self.command(port, "CLUSTER", "SLOTS")
        return [int(master[1]) for first, last, master, *_ in slots if first <= slot <= last]

    # -- faults and changes ----------------------------------------------------------------------------------------

    def join(self) -> int:
        """Start one more node, which no other node knows. Return its port."""
        port, bus, tls = free_port(), free_port(), free_port()
        self._bus[port], self._tls[port] = bus, tls
        self.ports.append(port)
        self._start(port)
        return port

    def meet(self) -> int:
        """Add one more master to the cluster, without slots. Return its port."""
        port = self.join()
        self.command(self.ports[0], "CLUSTER", "MEET", "127.0.0.1", port, self._bus[port])
        until(
            lambda: all(len(self.nodes(node_port)) == len(self.ports) for node_port in self.ports),
            "the nodes did not meet",
        )
        until(lambda: "cluster_state:ok" in self.command(port, "CLUSTER", "INFO"), "the new node sees no cluster")
        return port

    def leave(self, port: int) -> None:
        """Stop a node that owns no slot, and remove it from the other nodes' lists."""
        name = self.id_of(port)
        self.kill(port)
        self.ports.remove(port)
        del self._processes[port]
        for node_port in self.ports:
            self.command(node_port, "CLUSTER", "FORGET", name)

    def move(self, slot: int, to: int) -> None:
        """Move a slot as redis-cli does: SETSLOT, and its keys one by one."""
        before = self.owner_of_slot(slot)
        if before == to:
            return
        names = {port: self.id_of(port) for port in (before, to)}
        self.command(to, "CLUSTER", "SETSLOT", slot, "IMPORTING", names[before])
        self.command(before, "CLUSTER", "SETSLOT", slot, "MIGRATING", names[to])
        while keys := self.command(before, "CLUSTER", "GETKEYSINSLOT", slot, 1):
            self.command(before, "MIGRATE", "127.0.0.1", to, keys[0], 0, 5000)
        for port in (to, before):
            self.command(port, "CLUSTER", "SETSLOT", slot, "NODE", names[to])
        # A node that missed this move when the next move begins may accept the old owner's claim to the slot.
        until(lambda: self._is_agreed(slot, to), f"nodes do not agree on slot {slot}")

    def move_at_once(self, slot: int, to: int) -> None:
        """Move a slot with all its keys in one step, as Redis from 8.4 on and Valkey from 9 on do."""
        before = self.owner_of_slot(slot)
        if before == to:
            return
        if self._moves_at_once() == "MIGRATION":
            self.command(to, "CLUSTER", "MIGRATION", "IMPORT", slot, slot)
        else:
            self.command(before, "CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", self.id_of(to))
        until(lambda: self._is_agreed(slot, to), f"slot {slot} did not move")

    def _moves_at_once(self) -> str | None:
        help_text = " ".join(self.command(self.ports[0], "CLUSTER", "HELP"))
        return next((word for word in ("MIGRATION", "MIGRATESLOTS") if f" {word} " in help_text), None)

    def _is_agreed(self, slot: int, owner: int) -> bool:
        """Whether all nodes that answer report this owner of the slot, and the same epoch."""
        epochs = set()
        for port in self.answering(self.ports):
            if self._reported(port, slot) != [owner]:
                return False
            epochs.update(re.findall(r"current_epoch:\d+", self.command(port, "CLUSTER", "INFO")))
        return len(epochs) == 1

    def healthy(self) -> None:
        """Start the nodes that do not run, and wait until all nodes report the same healthy cluster."""
        for port, process in self._processes.items():
            if process.poll() is not None:
                self._start(port)
        until(self._is_whole, "the cluster did not become healthy again", 60)

    def _is_whole(self) -> bool:
        views = []
        for port in self.ports:
            if "cluster_state:ok" not in self.command(port, "CLUSTER", "INFO"):
                return False
            views.append(sorted((n, sorted(flags - {"myself"}), m) for n, flags, m in self.nodes(port).values()))
        if any(view != views[0] for view in views):
            return False
        if any(set(flags) - {"master", "slave"} for _, flags, _ in views[0]):
            return False
        for port in self.masters():
            if [one["state"] for one in self.replicas(port)] != ["online"]:
                return False
        return len(self.masters()) == MASTERS

    def _start(self, port: int, *more: str) -> None:
        cluster = [
            *("--cluster-enabled", "yes", "--cluster-port", str(self._bus[port])),
            *("--cluster-config-file", f"{port}.nodes", "--cluster-node-timeout", str(NODE_TIMEOUT)),
            *("--cluster-allow-replica-migration", "no", "--cluster-replica-validity-factor", "0"),
        ]
        if self._keys is not None:
            cluster += ["--tls-port", str(self._tls[port]), "--tls-cluster", "yes", "--tls-replication", "yes",
                        "--tls-ca-cert-file", f"{self._keys}/ca.pem", "--tls-cert-file", f"{self._keys}/server.pem",
                        "--tls-key-file", f"{self._keys}/server.key"]  # fmt: skip
        if port in self._clients:
            self._clients.pop(port).close()
        super()._start(port, *cluster, *more)


class ClusterServer(Server):
    """Address of a cluster. Its client finds the node of each key."""

    def client(self, **options: Any) -> Any:
        addresses = [address.split(":") for address in self.url.rpartition("/")[2].split(",")]
        nodes = [redis.cluster.ClusterNode(*address) for address in addresses]
        key = (self.url, *sorted(options.items()))
        if key not in _clients:  # a new client takes longer than the commands that a test sends
            _clients[key] = _KeptClient(startup_nodes=nodes, **{"protocol": 2, **options})
        return _clients[key]


class _KeptClient(redis.RedisCluster):
    def close(self) -> None:
        """Do nothing: the client is used again."""


_clients: dict[tuple[Any, ...], _KeptClient] = {}


running_cluster = RedisCluster
