"""A replica that lagged is promoted, in a cluster."""

from __future__ import annotations

import pytest

from tests.lagging import Lagging
from tests.losses_of_entries import LossesOfEntries
from tests.losses_of_rows import LossesOfRows
from tests.redis_cluster.lagging import OfCluster
from tests.redis_cluster.processes import RedisCluster


@pytest.fixture
def lagging(cluster: RedisCluster) -> Lagging:
    return OfCluster(cluster)


class TestEntries(LossesOfEntries):
    """See there."""


class TestRows(LossesOfRows):
    """The query's record is lost, too."""


class TestRowsApartFromTheRecord(LossesOfRows):
    """The query's record is kept, and its witness is where the rows are, or on the third node."""

    def query(self, lagging: Lagging) -> str:
        return next(f"q{n}" for n in range(1000) if not lagging.has_both("out", f"rstream:sink:q{n}"))
