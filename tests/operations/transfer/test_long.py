"""A million entries from the bundled engine to a redis-server to a cluster; each copy is killed three times."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import pytest
import redis

from spark_streams.connector.wire.address import Address
from spark_streams.connector.wire.connect import connect
from tests.operations.transfer.test_copy import kill_and_finish
from tools.servers.cluster import RedisCluster
from tools.servers.server import Server

ENTRIES = 1_000_000
_CHUNK = 10_000


def commands(first: int) -> Iterator[tuple[str | bytes | int, ...]]:
    for n in range(first, first + _CHUNK):
        yield ("XADD", "s", f"{n // 3 + 1}-{n % 3 + 1}", "customer", f"c{n % 977}", "amount", n, "raw", b"\xff%d" % n)


def _length(client: redis.Redis) -> int:
    return int(client.xlen("s"))


@pytest.mark.long
def test_a_million_entries_reach_a_cluster_although_each_copy_is_killed_three_times(
    engine_server: Server, redis_server: Server, cluster: RedisCluster
) -> None:
    for server in (engine_server, redis_server):
        server.client().flushall()
    with connect(Address.parse(engine_server.url)) as connection:
        for first in range(0, ENTRIES, _CHUNK):
            connection.execute_all(list(commands(first)))
    checksums = []
    node = redis.Redis(port=cluster.owner("s"))
    for source, target, client in (
        (engine_server.url, redis_server.url, redis_server.client()),
        (redis_server.url, cluster.url, node),
    ):
        words = ["copy", "s", "s", "--url", source, "--to-url", target, "--json", "--yes"]
        begin = time.monotonic()
        report = kill_and_finish(words, partial(_length, client), ENTRIES)
        print(f"{source} to {target}: {time.monotonic() - begin:.1f} s with three kills; last run {report}")
        assert report["source"] == report["target"]
        assert (report["source"]["entries"], client.xlen("s")) == (ENTRIES, ENTRIES)
        checksums.append(report["source"]["checksum"])
    assert checksums[0] == checksums[1]
