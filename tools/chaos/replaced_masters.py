"""Masters of a cluster, or behind sentinels, are killed, frozen and replaced, and slots move.

Meanwhile a query reads and a producer writes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain

from spark_streams.connector.keys import slot_of
from spark_streams.operations.verify.history import Outcome as Sent
from spark_streams.operations.verify.history import Place
from tools.chaos.producer import client_of
from tools.chaos.scene import Outcome, Scene
from tools.chaos.scenes import run_with_faults
from tools.servers.cluster import RedisCluster, running_cluster
from tools.servers.sentinels import Sentinels, running_sentinels
from tools.waiting import until

STREAMS = 6
_FAILOVERS = 3  # attempts
_GIVEN_UP = 15.0  # seconds after which sentinels have given a failover up
STANDS_STILL = 8.0  # seconds, in which another server becomes the master

ReplicatedServers = RedisCluster | Sentinels


# -- a cluster ----------------------------------------------------------------------------------------------------


def _killed(scene: Scene, cluster: RedisCluster, stream: str) -> None:
    before = cluster.owner(stream)
    cluster.kill(before)
    until(lambda: cluster.owner(stream) != before, "no failover")
    time.sleep(scene.random.random())


def _stands_still(scene: Scene, cluster: RedisCluster, stream: str) -> None:
    before = cluster.owner(stream)
    cluster.freeze(before)
    try:
        time.sleep(STANDS_STILL)
    finally:
        cluster.thaw(before)


def _slots_move(scene: Scene, cluster: RedisCluster, stream: str) -> None:
    """Move the slots of the stream and of some others, key by key."""
    names = [stream, *scene.random.choices(streams_of(scene), k=3)]
    for name in names:
        other_masters = [port for port in cluster.masters() if port != cluster.owner(name)]
        cluster.move(slot_of(name.encode()), scene.random.choice(other_masters))


def _slots_move_and_a_master_is_killed(scene: Scene, cluster: RedisCluster, stream: str) -> None:
    _slots_move(scene, cluster, stream)
    _killed(scene, cluster, scene.random.choice(streams_of(scene)))


# -- sentinels ----------------------------------------------------------------------------------------------------


def _master_killed(scene: Scene, sentinels: Sentinels, stream: str) -> None:
    before = sentinels.master()
    sentinels.kill(before)
    until(lambda: sentinels.master() != before, "no failover")
    time.sleep(scene.random.random())


def _master_stands_still(scene: Scene, sentinels: Sentinels, stream: str) -> None:
    before = sentinels.master()
    sentinels.freeze(before)
    try:
        time.sleep(STANDS_STILL)
    finally:
        sentinels.thaw(before)


def _failed_over(scene: Scene, sentinels: Sentinels, stream: str) -> None:
    """Request a failover. On a busy machine sentinels give up a slow failover: then request it again."""
    before = sentinels.master()
    for _ in range(_FAILOVERS - 1):
        sentinels.fail_over()
        with suppress(AssertionError):
            until(lambda: sentinels.master() != before, "no failover", _GIVEN_UP)
            return
    sentinels.fail_over()
    until(lambda: sentinels.master() != before, "no failover")


# Faults by kind of server, and by their name in the table.
FAULTS: Mapping[str, Mapping[str, Callable[..., None]]] = {
    "cluster": {
        "cluster: master killed": _killed,
        "cluster: master stands still": _stands_still,
        "cluster: slots move": _slots_move,
        "cluster: slots move and a master is killed": _slots_move_and_a_master_is_killed,
    },
    "sentinel": {
        "sentinel: master killed": _master_killed,
        "sentinel: master stands still": _master_stands_still,
        "sentinel: failover": _failed_over,
    },
}


@contextmanager
def running(kind: str) -> Iterator[ReplicatedServers]:
    """Run servers of this kind on ports of the loopback address."""
    with running_cluster() if kind == "cluster" else running_sentinels() as servers:
        yield servers


def streams_of(scene: Scene) -> list[str]:
    """Return the streams of the scene. In a cluster their slots belong to all masters."""
    return [f"{scene.name}-{n}" for n in range(STREAMS)]


def run_under_faults(scene: Scene, servers: ReplicatedServers, fault: Callable[..., None]) -> Outcome:
    """Run a query through three of these faults: no row is lost or duplicated.

    Entries that no replica held when their master was killed are missing for every client, and do not count.
    """
    streams = streams_of(scene)

    def strike() -> None:
        servers.healthy()
        fault(scene, servers, scene.random.choice(streams))

    query = run_with_faults(scene, streams, strike)
    servers.healthy()
    outcome = scene.outcome(query, removed=_never_replicated(scene, streams))
    # A replica may lack deliveries of the group. The query then sets the group's position without acknowledgements.
    outcome.report.forgive("unseen")
    return outcome


def _never_replicated(scene: Scene, streams: list[str]) -> Iterator[Place]:
    """Return entries whose XADD was confirmed, but that are not in their stream."""
    with client_of(scene.url) as client:
        present = set(chain.from_iterable(((name, entry) for entry, _ in client.xrange(name)) for name in streams))
    for entry in scene.producer.added:
        if entry.outcome is Sent.OK and entry.place is not None and entry.place not in present:
            yield entry.place
