"""`rstream verify` with failovers of a cluster and of Sentinel, and with drivers that spark-submit starts."""

from __future__ import annotations

import shutil

import pytest

from tests.operations.verify.test_defects import verify
from tools.servers.cluster import running_cluster
from tools.servers.sentinels import running_sentinels
from tools.servers.server import Server, skip_without_redis

pytestmark = [pytest.mark.spark, pytest.mark.kills]


def test_a_cluster_with_failovers_passes() -> None:
    """CLUSTER FAILOVER loses nothing."""
    skip_without_redis()
    with running_cluster() as cluster:
        code, report, progress = verify(cluster.url, "--allow-failover", minutes=0.8)
        left = {key for port in cluster.masters() for key in cluster.client(port).scan_iter()}
    assert (code, report["verdict"]) == (0, "held"), (report, progress)
    assert "failover" not in report["not tried"]
    assert left == {"rstream:runs"}


def test_what_sentinel_loses_is_named() -> None:
    """SENTINEL FAILOVER may lose entries that the old master has confirmed: if it does, the report says so."""
    skip_without_redis()
    with running_sentinels() as sentinels:
        code, report, progress = verify(sentinels.url, "--allow-failover", minutes=0.8)
    assert "failover" not in report["not tried"], progress
    if code:
        assert {kind for kind, count in report["counts"].items() if count} == {"lost"}, (report, progress)
        assert "that the server had confirmed" in report["sentence"]


def test_drivers_of_spark_submit_with_executors_of_their_own(redis_server: Server) -> None:
    submit = shutil.which("spark-submit")
    assert submit is not None
    command = f"{submit} --master local-cluster[1,2,700] --conf spark.executor.memory=600m"
    code, report, progress = verify(redis_server.url, "--spark-submit", command, minutes=0.3)
    assert (code, report["verdict"]) == (0, "held"), (report, progress)
    assert "local-cluster" in report["server, Spark, settings"]["Spark"]
    assert "CLIENT KILL" in str(report["what was done"])
