"""A replica that lagged is promoted: one server, at an address that leads to the master."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lagging import Lagging, one_server
from tests.losses_of_entries import LossesOfEntries
from tests.losses_of_rows import LossesOfRows, RowsThatAreRefused
from tools.driving import forget_all
from tools.servers.server import skip_without_redis

pytestmark = pytest.mark.in_turn


@pytest.fixture
def lagging() -> Iterator[Lagging]:
    skip_without_redis()
    with one_server() as made:
        yield made
        forget_all()


class TestEntries(LossesOfEntries):
    """See there."""


class TestRows(LossesOfRows):
    """See there."""


class TestMinReplicas(RowsThatAreRefused):
    """See there."""

    @pytest.fixture
    def lagging(self) -> Iterator[Lagging]:
        skip_without_redis()
        with one_server("--min-replicas-to-write", "1", "--min-replicas-max-lag", "5") as made:
            yield made
