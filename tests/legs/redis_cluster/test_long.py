"""The same for longer, and with more at once: a reshard, slots that move while masters are killed and stand still."""

from __future__ import annotations

import random
import subprocess
import time

import pytest

from spark_streams.connector.keys import slot_of
from tests.legs.redis_cluster.piping import OUTS, STREAMS, Piping
from tools.day_seed import first_seed
from tools.servers.cluster import RedisCluster
from tools.waiting import until

pytestmark = pytest.mark.long


def move_one(cluster: RedisCluster, chance: random.Random) -> None:
    """Move the slot of a stream to another master."""
    slot = slot_of(chance.choice([*STREAMS, *OUTS]).encode())
    before = cluster.owner_of_slot(slot)
    cluster.move(slot, chance.choice([port for port in cluster.masters() if port != before]))


def seeded() -> random.Random:
    print(f"RSTREAM_SEED={first_seed()}")
    return random.Random(first_seed())


def replaced(cluster: RedisCluster, stream: str, before: int) -> None:
    """Another node is the master of this stream."""
    until(lambda: cluster.owner(stream) != before, "no failover")


def finished(cluster: RedisCluster, piping: Piping) -> None:
    piping.at_least(300)
    piping.end()
    cluster.healthy()
    total = piping.nothing_is_lost_or_doubled()
    print(f"{total:,} entries, longest step {piping.longest:.1f} s")


def test_slots_move_key_by_key_for_half_a_minute(cluster: RedisCluster) -> None:
    chance, piping, end = seeded(), Piping(cluster), time.monotonic() + 30
    while time.monotonic() < end:
        move_one(cluster, chance)
    finished(cluster, piping)


def test_a_node_joins_gets_slots_gives_them_back_and_leaves(cluster: RedisCluster) -> None:
    piping = Piping(cluster)
    piping.at_least(300)
    port = cluster.meet()
    slots = {slot_of(stream.encode()) for stream in ("s0", "s1", "out-2")}
    before = {slot: cluster.owner_of_slot(slot) for slot in slots}
    for slot in slots:
        cluster.move(slot, port)
    piping.at_least(300)
    for slot, owner in before.items():
        cluster.move(slot, owner)
    cluster.leave(port)
    finished(cluster, piping)


def test_a_reshard_of_1500_slots(cluster: RedisCluster) -> None:
    piping = Piping(cluster)
    piping.at_least(300)
    before, to = cluster.masters()[:2]
    command = ["redis-cli", "--cluster", "reshard", f"127.0.0.1:{before}", "--cluster-from", cluster.id_of(before)]
    words = ["--cluster-to", cluster.id_of(to), "--cluster-slots", "1500", "--cluster-yes"]
    done = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    finished(cluster, piping)


def test_masters_are_killed_one_after_the_other(cluster: RedisCluster) -> None:
    piping = Piping(cluster)
    for stream in ("s0", "s1", "s2"):
        piping.at_least(300)
        before = cluster.owner(stream)
        cluster.kill(before)
        replaced(cluster, stream, before)
        piping.at_least(300)
        cluster.healthy()
    finished(cluster, piping)


def test_a_master_stands_still_for_eight_seconds(cluster: RedisCluster) -> None:
    piping = Piping(cluster)
    for stream in ("s0", "s1"):
        piping.at_least(300)
        before = cluster.owner(stream)
        cluster.freeze(before)
        time.sleep(8)
        cluster.thaw(before)
        piping.at_least(300)
        cluster.healthy()
    finished(cluster, piping)


def test_slots_move_while_a_master_is_killed_and_another_stands_still(cluster: RedisCluster) -> None:
    chance, piping = seeded(), Piping(cluster)
    piping.at_least(300)
    for happens in (cluster.kill, cluster.freeze):
        for _ in range(5):
            move_one(cluster, chance)
        before = cluster.owner("s0")
        happens(before)
        time.sleep(8)
        if happens == cluster.freeze:
            cluster.thaw(before)
        assert cluster.owner("s0") != before
        for _ in range(5):
            cluster.healthy()
            move_one(cluster, chance)
        piping.at_least(300)
    finished(cluster, piping)
