"""Masters of a cluster, and behind sentinels, are killed, stand still and are replaced, and slots move, under a query
that reads and a producer that writes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain

from spark_streams.model.keys import slot_of
from tools.chaos.broken_server import under_blows
from tools.chaos.clients import client_of
from tools.chaos.history import Outcome as Sent
from tools.chaos.history import Place
from tools.chaos.scene import Outcome, Scene
from tools.servers.cluster import RedisCluster, running_cluster
from tools.servers.sentinels import Sentinels, running_sentinels, until

STREAMS = 6
_FAILOVERS = 3  # that are asked for
_GIVEN_UP = 15.0  # seconds after which one that has not ended never does
STANDS_STILL = 8.0  # seconds, in which another one has become the master

Several = RedisCluster | Sentinels


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
    """Those of the stream and of others, key by key."""
    names = [stream, *scene.random.choices(streams_of(scene), k=3)]
    for name in names:
        others = [port for port in cluster.masters() if port != cluster.owner(name)]
        cluster.move(slot_of(name.encode()), scene.random.choice(others))


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
    """On a busy machine sentinels give a failover up that takes too long: then it is asked for again."""
    before = sentinels.master()
    for _ in range(_FAILOVERS - 1):
        sentinels.fail_over()
        with suppress(AssertionError):
            until(lambda: sentinels.master() != before, "no failover", _GIVEN_UP)
            return
    sentinels.fail_over()
    until(lambda: sentinels.master() != before, "no failover")


# What happens to which kind of servers, by the name that the table shows.
BLOWS: Mapping[str, Mapping[str, Callable[..., None]]] = {
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
def running(kind: str) -> Iterator[Several]:
    """Servers of this kind, on ports of the loopback address."""
    with running_cluster() if kind == "cluster" else running_sentinels() as made:
        yield made


def streams_of(scene: Scene) -> list[str]:
    """Of a cluster they are in slots of all masters."""
    return [f"{scene.name}-{n}" for n in range(STREAMS)]


def struck(scene: Scene, servers: Several, blow: Callable[..., None]) -> Outcome:
    """The query goes on through three of these blows, and no row is lost or doubled. What no replica had when a master
    was lost is the producer's loss, and counts for nothing."""
    streams = streams_of(scene)

    def strike() -> None:
        servers.healthy()
        blow(scene, servers, scene.random.choice(streams))

    query = under_blows(scene, streams, strike)
    servers.healthy()
    outcome = scene.outcome(query, gone=_never_replicated(scene, streams))
    # A replica may lack what its group was given. The query sets the group then, and acknowledges nothing.
    outcome.report.forgive("unseen")
    return outcome


def _never_replicated(scene: Scene, streams: list[str]) -> Iterator[Place]:
    """Entries whose id came back, and that their stream does not have."""
    with client_of(scene.url) as client:
        there = set(chain.from_iterable(((name, entry) for entry, _ in client.xrange(name)) for name in streams))
    for one in scene.producer.added:
        if one.outcome is Sent.OK and one.place is not None and one.place not in there:
            yield one.place
