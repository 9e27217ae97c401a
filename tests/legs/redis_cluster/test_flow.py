"""Source and exactly-once sink over twelve streams while slots move and masters die: nothing is lost, nothing is there
twice, nothing stays pending, and nothing is started again. (The replicas keep up here.)"""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from spark_streams.connector.keys import slot_of
from tests.legs.redis_cluster.piping import OUTS, STREAMS, Piping
from tools.driving import ALL, SMALL, reader
from tools.servers.cluster import RedisCluster
from tools.waiting import until

pytestmark = pytest.mark.in_turn


@pytest.mark.parametrize(
    "sink",
    [
        {},
        {"waitReplicas": "1", "maxlen": "100000", "chunkSize": "50"},
        {"on_commit": "delete", "retentionBytes": "50mb"},
    ],
)
def test_a_quiet_cluster(cluster: RedisCluster, sink: dict[str, str]) -> None:
    piping = Piping(cluster, **sink)
    piping.at_least(1000)
    piping.end()
    assert piping.nothing_is_lost_or_doubled() >= 1000


def test_an_idle_query_over_many_slots_sends_no_commands(cluster: RedisCluster) -> None:
    """It waits for each slot by a request of its own: a server takes no request of keys in two of them."""
    names = [f"s{n}" for n in range(12)]
    one = reader(cluster.server, limits=replace(SMALL, idle_check=600.0, idle_wait=0.05), streams=",".join(names))
    at = one.initialOffset()

    def calls() -> int:
        stats = [cluster.client(port).info("commandstats") for port in cluster.masters()]
        return sum(one["calls"] for of_one in stats for name, one in of_one.items() if name.startswith("cmdstat_x"))

    for _ in range(3):
        assert one.latestOffset(at, ALL) == at
    before = calls()
    for _ in range(20):
        assert one.latestOffset(at, ALL) == at
    assert calls() == before
    began = time.monotonic()
    cluster.server.client().xadd("s11", {"n": 1, "t": "a"})
    while one.latestOffset(at, ALL) == at:
        assert time.monotonic() - began < 10


def test_slots_that_move_key_by_key(cluster: RedisCluster) -> None:
    piping = Piping(cluster, on_commit="delete")
    piping.at_least(300)
    for turn in range(1, 3):
        for n, stream in enumerate([*STREAMS, *OUTS]):
            masters = cluster.masters()
            cluster.move(slot_of(stream.encode()), masters[(n + turn) % len(masters)])
            piping.at_least(1)
    piping.at_least(300)
    piping.end()
    piping.nothing_is_lost_or_doubled()


def test_a_master_that_is_killed(cluster: RedisCluster) -> None:
    before, piping = cluster.owner("s0"), Piping(cluster, on_commit="delete")
    piping.at_least(300)
    cluster.kill(before)
    until(lambda: cluster.owner("s0") != before, "no failover")
    piping.at_least(300)
    piping.end()
    piping.nothing_is_lost_or_doubled()


def test_a_master_that_stands_still_and_wakes_up_when_another_has_taken_over(cluster: RedisCluster) -> None:
    before, piping = cluster.owner("s0"), Piping(cluster)
    piping.at_least(300)
    cluster.freeze(before)
    try:
        time.sleep(8)
        piping.at_least(300)
    finally:
        cluster.thaw(before)
    piping.at_least(300)
    piping.end()
    piping.nothing_is_lost_or_doubled()
