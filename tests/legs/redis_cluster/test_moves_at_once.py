"""Slots that move with all their keys in one step, on those servers of `scripts/servers` that can: source and sink go
on, also where masters are killed meanwhile."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest

from spark_streams.connector.keys import slot_of
from tests.legs.redis_cluster.piping import OUTS, STREAMS, Piping
from tests.legs.redis_cluster.test_long import finished, replaced, seeded
from tests.legs.versions.folder import bin_of, version_of
from tools.driving import forget_all
from tools.servers.cluster import RedisCluster, running_cluster

pytestmark = pytest.mark.long


@pytest.fixture(params=["redis-8.6", "valkey-9"])
def newer(request: pytest.FixtureRequest) -> Iterator[RedisCluster]:
    """A cluster of such servers."""
    if version_of(request.param) is None:
        pytest.skip(
            f"Redis from 8.4 on and Valkey from 9 on move slots whole: scripts/servers {request.param} fetches it"
        )
    with running_cluster(program=bin_of(request.param) / "redis-server") as made:
        yield made
    forget_all()


def move_one(cluster: RedisCluster, chance: random.Random) -> None:
    slot = slot_of(chance.choice([*STREAMS, *OUTS]).encode())
    before = cluster.owner_of_slot(slot)
    cluster.move_at_once(slot, chance.choice([port for port in cluster.masters() if port != before]))


def test_slots_move_at_once_for_half_a_minute(newer: RedisCluster) -> None:
    chance, piping, end, moves = seeded(), Piping(newer), time.monotonic() + 30, 0
    while time.monotonic() < end:
        move_one(newer, chance)
        moves += 1
        piping.at_least(1)
    print(f"{moves} moves")
    finished(newer, piping)


def test_slots_move_at_once_between_masters_that_are_killed(newer: RedisCluster) -> None:
    chance, piping = seeded(), Piping(newer)
    for stream in ("s0", "s1"):
        for _ in range(5):
            move_one(newer, chance)
        before = newer.owner(stream)
        newer.kill(before)
        replaced(newer, stream, before)
        piping.at_least(300)
        newer.healthy()
    finished(newer, piping)
