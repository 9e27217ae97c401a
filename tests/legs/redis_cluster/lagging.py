"""Masters of a cluster whose replicas are cut off, and then promoted."""

from __future__ import annotations

from tests.lagging import cut_off, join_again
from tools.servers.cluster import RedisCluster
from tools.waiting import until


class OfCluster:
    """The masters of some keys, and their replicas (tests.lagging.Lagging)."""

    def __init__(self, cluster: RedisCluster) -> None:
        self._cluster = cluster
        self._cut: dict[int, int] = {}  # a master that was cut off → its replica
        self.server = cluster.server

    def cut_off(self, *keys: str) -> None:
        for port in {self._cluster.owner(key) for key in keys}:
            nodes = self._cluster.nodes(port)
            [self._cut[port]] = [one for one, (_, _, master) in nodes.items() if master == nodes[port][0]]
            cut_off(self._cluster.client(port), self._cluster.client(self._cut[port]))

    def promote(self) -> None:
        for master in self._cut:
            self._cluster.kill(master)
        for replica in self._cut.values():
            self._cluster.command(replica, "CLUSTER", "FAILOVER", "TAKEOVER")
            join_again(self._cluster.client(replica))
        until(lambda: set(self._cut.values()) <= set(self._cluster.masters()), "the replicas were not promoted")
        until(self._is_agreed, "nodes do not agree on who is a master")
        self._cut.clear()

    def _is_agreed(self) -> bool:
        living = [port for port in self._cluster.ports if self._cluster.is_running(port)]
        owners = {
            tuple(sorted(one[2][1] for one in self._cluster.command(port, "CLUSTER", "SLOTS"))) for port in living
        }
        return len(owners) == 1 and not {*self._cut} & {*next(iter(owners))}

    def has_both(self, key: str, other: str) -> bool:
        return self._cluster.owner(key) == self._cluster.owner(other)
