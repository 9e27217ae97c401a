"""A replica that lagged is promoted, in a cluster."""

from __future__ import annotations

import contextlib
from collections import Counter

import pytest

from tests.lagging import Lagging
from tests.legs.redis_cluster.lagging import OfCluster
from tests.losses_of_entries import LossesOfEntries
from tests.losses_of_rows import LossesOfRows, batch_done, rows_in
from tools.sending import KilledError, dying_at
from tools.servers.cluster import RedisCluster

pytestmark = pytest.mark.in_turn


@pytest.fixture
def lagging(cluster: RedisCluster) -> Lagging:
    return OfCluster(cluster)


class TestEntries(LossesOfEntries):
    """See there."""


class TestRows(LossesOfRows):
    """The query's record is lost, too."""


class TestRowsApartFromTheRecord(LossesOfRows):
    """The query's record is kept."""

    lost = r"batch 1 of query q\d+ was done in stream 'out', but the stream's ledger has"

    def query(self, lagging: Lagging) -> str:
        return next(f"q{n}" for n in range(1000) if not lagging.has_both("out", f"rstream:sink:q{n}"))


def test_a_driver_that_dies_while_it_forgets_a_stream_finds_nothing_lost(
    cluster: RedisCluster, lagging: Lagging
) -> None:
    """Heads of other nodes are compared with the record, and a stream without rows has none afterwards."""
    streams = ("out", "{a}out", "{b}out")
    turn, is_over = 0, False
    while not is_over:
        turn += 1
        for executed in (True, False):
            cluster.flushed()
            for number, stream in enumerate(streams):
                batch_done(lagging, number, [number], stream=stream)
            with contextlib.suppress(KilledError), dying_at(turn, executed) as sent:
                batch_done(lagging, 3, [])
            is_over = len(sent) < turn
            for number, rows in ((3, []), (4, [4]), (5, [5]), (6, [])):
                batch_done(lagging, number, rows)
            assert rows_in(lagging, *streams) == Counter([0, 1, 2, 4, 5])
            heads = [key for port in cluster.masters() for key in cluster.client(port).keys("rstream:sink:{*}:q")]
            assert heads == []
    assert turn > 10
