"""One cluster for all tests of this folder, whole again before each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.redis_cluster.processes import RedisCluster, running_cluster
from tests.servers import skip_without_redis
from tests.source.driving import forget_all


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
