"""Fixtures for tests of code that uses streams; pytest finds them wherever this package is installed.

    def test_orders(rstream_client, rstream_url): …

Every pytest of such an environment imports this module: it imports pytest alone. The first test that asks for an engine
starts it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import redis

    from spark_streams.engine import LocalEngine


@pytest.fixture(scope="session")
def _rstream_running_engine() -> Iterator[LocalEngine]:
    from spark_streams.engine import LocalEngine

    with LocalEngine() as engine:
        yield engine


@pytest.fixture
def rstream_engine(_rstream_running_engine: LocalEngine) -> LocalEngine:
    """A stream engine of this test session's own, empty; what a test leaves in it stays until the next one begins."""
    import redis

    with redis.Redis.from_url(_rstream_running_engine.url) as client:
        client.flushall()
    return _rstream_running_engine


@pytest.fixture
def rstream_url(rstream_engine: LocalEngine) -> str:
    """Its address: for option `url`, for `RSTREAM_URL`, for any client of Redis."""
    return rstream_engine.url


@pytest.fixture
def rstream_client(rstream_url: str) -> Iterator[redis.Redis]:
    """A client of redis-py for it."""
    import redis

    with redis.Redis.from_url(rstream_url, decode_responses=True) as client:
        yield client
