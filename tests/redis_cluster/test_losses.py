"""A replica that lagged is promoted, in a cluster."""

from __future__ import annotations

import pytest

from spark_streams.model.keys import RUNS
from spark_streams.sink.ledger.runs import begin_job
from tests.lagging import Lagging
from tests.losses_of_entries import LossesOfEntries
from tests.losses_of_rows import LossesOfRows, batch_done, sink
from tests.redis_cluster.lagging import OfCluster
from tests.sink.writing import close, frame, write
from tools.servers.cluster import RedisCluster


@pytest.fixture
def lagging(cluster: RedisCluster) -> Lagging:
    return OfCluster(cluster)


class TestEntries(LossesOfEntries):
    """See there."""


class TestRows(LossesOfRows):
    """The query's record is lost, too: its witness, on another node, knows more than one server does."""

    lost = r"batch 1 of query q\d+ was done, with 60 rows, in stream 'out', but the stream's ledger has"


class TestRowsApartFromTheRecord(LossesOfRows):
    """The query's record is kept, and its witness is where the rows are, or on the third node."""

    lost = r"batch 1 of query q\d+ was done,? .*in stream 'out', but the stream's ledger has"

    def query(self, lagging: Lagging) -> str:
        return next(f"q{n}" for n in range(1000) if not lagging.has_both("out", f"rstream:sink:q{n}"))


def test_a_query_has_one_witness_apart_from_its_record(cluster: RedisCluster, lagging: Lagging) -> None:
    for number in range(3):
        batch_done(lagging, number, [number, 100 + number], stream="out" if number else "other")
    batch_done(lagging, 0, [1], "another")
    found = [(port, key) for port in cluster.masters() for key in cluster.client(port).keys("rstream:witness:*:q")]
    [(port, key)] = found
    assert port != cluster.owner("rstream:sink:q")
    told = cluster.client(port)
    assert told.hgetall(key) == {"": "2", "out": "2"}
    assert 0 < told.ttl(key) <= 7 * 86_400


def test_a_job_has_none(cluster: RedisCluster, lagging: Lagging) -> None:
    checked = sink(lagging)
    batch = begin_job(checked.address)
    close(checked, batch, write([frame([1, 2])], checked, batch))
    assert not [key for port in cluster.masters() for key in cluster.client(port).keys("rstream:*") if key != RUNS]
