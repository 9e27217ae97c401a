"""Fixtures that every test shares: the servers that stream behaviour is tested on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.servers import Server, running_engine, running_redis, skip_without_redis

# How long an example takes says how busy the machine is. What once failed is a test of its own, not a file on one disk.
settings.register_profile("tests", deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


@pytest.fixture(scope="session")
def engine_server() -> Iterator[Server]:
    with running_engine() as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Server]:
    skip_without_redis()
    with running_redis() as server:
        yield server


@pytest.fixture(params=["engine", "redis"])
def server(request: pytest.FixtureRequest) -> Server:
    """An empty server: the same test runs on the bundled engine and on a real redis-server."""
    chosen: Server = request.getfixturevalue(f"{request.param}_server")
    with chosen.client() as client:
        client.flushall()
    return chosen
