"""Executors and workers that go, and come, in the middle of a query: nothing lost, nothing twice, nothing left pending.

Executors have the package installed. The query drains its stream in batches of 5,000, each some seconds' work for the
one or two cores that there are.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

from tests.legs.cluster.carrying import Carrying, carried, feed, pending
from tests.legs.cluster.conftest import Pythons
from tests.legs.cluster.standalone import SPARK_HOME, Cluster, wait_until
from tools.servers.server import Server

pytestmark = [pytest.mark.cluster, pytest.mark.spark]
MANY = 50_000
SMALL_TASKS = {"entriesPerPartition": "1000"}  # some at once on each executor, and some to come
# Decommissioning is an application's to allow, too.
LEAVING = ("--conf", "spark.decommission.enabled=true")


def begin(cluster: Cluster, pythons: Pythons, real: Server, folder: Path, *submit: str) -> Carrying:
    feed(real, MANY)
    return Carrying(cluster, folder, [real], pythons.whole, submit, options=SMALL_TASKS)


def check(run: Carrying, real: Server) -> None:
    """All is there once, and acknowledged."""
    run.finish()
    assert carried(real) == list(range(MANY))
    assert pending(real) == 0


def test_an_executor_is_killed(cluster: Cluster, pythons: Pythons, real: Server, tmp_path: Path) -> None:
    """By SIGKILL; the worker starts another one."""
    run = begin(cluster, pythons, real, tmp_path)
    run.in_the_middle(real)
    before = cluster.executors()
    assert len(before) == 2
    os.kill(before[0].pid, signal.SIGKILL)
    known = {one.number for one in before}
    wait_until(lambda: {one.number for one in cluster.executors()} - known, "there is a new executor")
    check(run, real)


def test_a_worker_is_killed(cluster: Cluster, pythons: Pythons, real: Server, tmp_path: Path) -> None:
    """One of two, by SIGKILL, and its executor goes with it: the other one does the rest."""
    run = begin(cluster, pythons, real, tmp_path)
    run.in_the_middle(real)
    victim = cluster.executors()[0].worker
    cluster.workers[victim].end()
    check(run, real)


def test_a_worker_is_decommissioned(cluster: Cluster, pythons: Pythons, real: Server, tmp_path: Path) -> None:
    """SIGPWR, as spark.decommission.enabled on the worker has it; its executor takes no more tasks, and leaves."""
    run = begin(cluster, pythons, real, tmp_path, *LEAVING)
    run.in_the_middle(real)
    leaving = cluster.executors()[0]
    os.kill(cluster.workers[leaving.worker].process.pid, signal.SIGPWR)
    wait_until(lambda: len(cluster.alive_workers()) == 1, "the master knows that a worker leaves")
    check(run, real)
    cluster.workers[leaving.worker].end()


def test_executors_come_and_go(cluster: Cluster, pythons: Pythons, real: Server, tmp_path: Path) -> None:
    """Dynamic allocation: none are left while the stream is quiet, and they come back with its entries."""
    dynamic = (
        "--conf", "spark.dynamicAllocation.enabled=true",
        "--conf", "spark.dynamicAllocation.shuffleTracking.enabled=true",
        "--conf", "spark.dynamicAllocation.minExecutors=0", "--conf", "spark.dynamicAllocation.maxExecutors=2",
        "--conf", "spark.dynamicAllocation.executorIdleTimeout=3s",
    )  # fmt: skip
    feed(real, MANY // 2)
    trigger = {"processingTime": "1 second"}
    run = Carrying(cluster, tmp_path, [real], pythons.whole, dynamic, trigger=trigger, options=SMALL_TASKS)
    try:
        run.in_the_middle(real)
        first = {one.number for one in cluster.executors()}
        assert first
        wait_until(lambda: not cluster.executors(), "idle executors have gone")
        feed(real, MANY // 2, first=MANY // 2)
        wait_until(lambda: {one.number for one in cluster.executors()} - first, "new executors have come")
        with real.client() as client:
            wait_until(lambda: client.xlen("out") >= MANY and not pending(real), "all is written and acknowledged")
    finally:
        run.process.send_signal(signal.SIGTERM)
    assert run.ended() == 0, run.output()
    assert carried(real) == list(range(MANY))


def test_a_driver_on_the_cluster_is_killed(cluster: Cluster, pythons: Pythons, real: Server, tmp_path: Path) -> None:
    """Cluster mode by the class that runs Python programs; the master starts its driver again (--supervise)."""
    feed(real, MANY)
    core = next((SPARK_HOME / "jars").glob("spark-core_*.jar"))
    submit = (
        "--deploy-mode", "cluster", "--supervise", "--conf", f"spark.pyspark.python={pythons.whole}",
        "--class", "org.apache.spark.deploy.PythonRunner", f"file:{core}",
    )  # fmt: skip
    run = Carrying(cluster, tmp_path, [real], pythons.whole, submit, options=SMALL_TASKS, path=("",))
    assert run.ended() == 0, run.output()  # it is handed over
    run.in_the_middle(real, alive=False)
    before = drivers(tmp_path)
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: drivers(tmp_path) - before, "the master has started the driver again")
    wait_until((tmp_path / "done").exists, "the query has come to its end")
    assert carried(real) == list(range(MANY))
    assert pending(real) == 0


def drivers(folder: Path) -> set[int]:
    """The JVMs of drivers on the cluster that run a program with this folder."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_text().split("\0")
            if "org.apache.spark.deploy.worker.DriverWrapper" in words and str(folder / "asked") in words:
                found.add(int(process.name))
    return found
