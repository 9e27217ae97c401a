"""What cannot work on a cluster is said in one line: another version, another machine's engine, no package at all."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from spark_streams.engine.launch.embedded import locate
from tests.legs.cluster.carrying import QUICK, ROOT, SUBMIT, Carrying, carried, feed, pending, submit_environment
from tests.legs.cluster.conftest import Pythons
from tests.legs.cluster.pythons import install, make_python, make_wheel
from tests.legs.cluster.standalone import PATIENCE, Cluster, can_rename_machines, standalone
from tools.servers.server import Server

pytestmark = [pytest.mark.cluster, pytest.mark.spark]


def last_line(run: Carrying) -> str:
    assert run.ended() == 1, run.output()
    return run.output().strip().splitlines()[-1]


def test_executors_with_another_version(cluster: Cluster, pythons: Pythons, real: Server, tmp_path: Path) -> None:
    feed(real, 100)
    python = make_python(tmp_path / "older", like=pythons.bare)
    install(python, make_wheel(tmp_path / "wheel", version="0.0.9"))
    line = last_line(Carrying(cluster, tmp_path / "run", [real], python))
    assert "[RSTREAM_VERSION] a task cannot run on" in line
    assert "it has spark-streams 0.0.9" in line
    assert str(python) in line


def test_executors_without_the_package(cluster: Cluster, pythons: Pythons, real: Server, tmp_path: Path) -> None:
    feed(real, 100)
    line = last_line(Carrying(cluster, tmp_path, [real], pythons.bare))
    assert "No module named 'spark_streams'" in line
    assert "--py-files" in line


def test_cluster_mode_on_a_standalone_cluster_is_sparks_to_refuse(cluster: Cluster) -> None:
    words = [SUBMIT, "--master", cluster.url, "--deploy-mode", "cluster", *QUICK, str(ROOT / "jobs" / "etl.py")]
    ended = subprocess.run(
        words, env=submit_environment(None), capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert ended.returncode != 0
    assert "Cluster deploy mode is currently not supported for python applications on standalone" in ended.stderr


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Server]:
    """The shared engine of a driver with this RSTREAM_EMBEDDED_DIR, which workers do not have."""
    url = locate(idle=600, meeting=tmp_path / "meet")
    yield Server("engine", url)
    with contextlib.suppress(redis.ConnectionError), redis.Redis.from_url(url) as client:
        client.shutdown(nosave=True)


def carry_embedded(cluster: Cluster, pythons: Pythons, folder: Path) -> Carrying:
    given = {"RSTREAM_EMBEDDED_DIR": str(folder / "meet")}
    return Carrying(cluster, folder / "run", [Server("engine", "embedded:")], pythons.whole, environment=given)


def test_the_bundled_engine_serves_a_cluster_of_one_machine(
    cluster: Cluster, pythons: Pythons, embedded: Server, tmp_path: Path
) -> None:
    """Executors look where the driver does, whatever their workers' environment says."""
    feed(embedded, 100)
    carry_embedded(cluster, pythons, tmp_path).finish()
    assert carried(embedded) == list(range(100))
    assert pending(embedded) == 0


# A worker with another host name needs a UTS namespace of its own, which only root can make.
@pytest.mark.skipif(
    not can_rename_machines(), reason="only root can run a worker that believes to be on another machine"
)
def test_the_bundled_engine_of_another_machine(pythons: Pythons, embedded: Server, tmp_path: Path) -> None:
    """No executor starts an engine of its own, into which rows would go and be lost."""
    feed(embedded, 100)
    with standalone(tmp_path / "cluster", workers=0) as cluster:
        cluster.add_worker(machine="elsewhere")
        line = last_line(carry_embedded(cluster, pythons, tmp_path))
    assert "[RSTREAM_SERVER_UNREACHABLE] embedded: is the bundled engine of machine" in line
    assert "this task runs on 'elsewhere': that engine is reachable on its own machine only" in line
    assert "redis://host:port/db" in line
    assert carried(embedded) == []
