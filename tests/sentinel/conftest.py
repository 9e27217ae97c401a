"""One set of processes for all tests of this folder, whole again before each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.sentinel.processes import Sentinels, running_sentinels
from tests.servers import skip_without_redis
from tests.source.driving import forget_all


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
