"""Fixtures for tests of `rstream copy`, `export` and `import`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from tests.operations.groups.conftest import Rstream, RstreamJson, rstream, rstream_json
from tools.driving import forget_all
from tools.servers.cluster import RedisCluster, running_cluster
from tools.servers.server import Server, running_engine, skip_without_redis

__all__ = ["Rstream", "RstreamJson", "rstream", "rstream_json"]


@pytest.fixture
def client(server: Server) -> redis.Redis:
    """A plain client of the server; replies are bytes."""
    return server.client()


@pytest.fixture(scope="session")
def other_engine() -> Iterator[Server]:
    with running_engine() as server:
        yield server


@pytest.fixture
def other(other_engine: Server) -> Server:
    """A second server, empty."""
    with other_engine.client() as client:
        client.flushall()
    return other_engine


@pytest.fixture(scope="session")
def running() -> Iterator[RedisCluster]:
    skip_without_redis()
    with running_cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(running: RedisCluster) -> Iterator[RedisCluster]:
    """A cluster without keys."""
    running.flushed()
    yield running
    forget_all()
