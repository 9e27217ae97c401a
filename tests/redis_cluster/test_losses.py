"""A replica that lagged is promoted, in a cluster."""

from __future__ import annotations

import pytest

from tests.lagging import Lagging
from tests.losses_of_entries import LossesOfEntries
from tests.redis_cluster.lagging import OfCluster
from tests.redis_cluster.processes import RedisCluster


@pytest.fixture
def lagging(cluster: RedisCluster) -> Lagging:
    return OfCluster(cluster)


class TestEntries(LossesOfEntries):
    """See there."""
