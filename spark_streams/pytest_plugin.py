"""Fixtures for tests of code that uses streams. pytest finds them in every environment that has this package.

    def test_orders(rstream_client, rstream_url): …

Every pytest run of such an environment imports this module, so it imports only pytest. The first test that uses an
engine starts it.
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
    """The stream engine of this test session. Before each test it is emptied, and its clock is that of the machine."""
    import redis

    _rstream_running_engine.end_faults()  # one that a test has set by DEBUG might refuse the next command
    with redis.Redis.from_url(_rstream_running_engine.url) as client:
        client.flushall()
    _rstream_running_engine.reset_clock()
    return _rstream_running_engine


@pytest.fixture
def rstream_url(rstream_engine: LocalEngine) -> str:
    """URL of the engine: for option `url`, for `RSTREAM_URL` and for any Redis client."""
    return rstream_engine.url


@pytest.fixture
def rstream_client(rstream_url: str) -> Iterator[redis.Redis]:
    """A redis-py client of the engine, with `decode_responses=True`."""
    import redis

    with redis.Redis.from_url(rstream_url, decode_responses=True) as client:
        yield client
