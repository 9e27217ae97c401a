"""One set of processes for all tests of this folder, whole again before each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tools.driving import forget_all
from tools.servers.sentinels import Sentinels, running_sentinels
from tools.servers.server import skip_without_redis


@pytest.fixture(scope="session")
def all_sentinels() -> Iterator[Sentinels]:
    skip_without_redis()
    with running_sentinels() as made:
        yield made


@pytest.fixture
def sentinels(all_sentinels: Sentinels) -> Iterator[Sentinels]:
    """Whole, and empty."""
    all_sentinels.healthy()
    with all_sentinels.direct() as client:
        client.flushall()
    yield all_sentinels
    forget_all()
