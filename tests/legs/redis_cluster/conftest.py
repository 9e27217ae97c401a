"""One cluster for all tests of this folder, whole again before each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tools.driving import forget_all
from tools.servers.cluster import RedisCluster, running_cluster
from tools.servers.server import skip_without_redis


@pytest.fixture(scope="session")
def the_cluster() -> Iterator[RedisCluster]:
    skip_without_redis()
    with running_cluster() as made:
        yield made


@pytest.fixture
def cluster(the_cluster: RedisCluster) -> Iterator[RedisCluster]:
    """Whole, and empty."""
    the_cluster.healthy()
    the_cluster.flushed()
    yield the_cluster
    forget_all()
