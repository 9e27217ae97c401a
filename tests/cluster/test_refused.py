"""What cannot work on a cluster is said in one line: another version, another machine's engine, no package at all."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cluster.carrying import QUICK, ROOT, SUBMIT, Carrying, feed, submit_environment
from tests.cluster.conftest import Pythons
from tests.cluster.pythons import install, make_python, make_wheel
from tests.cluster.standalone import PATIENCE, Cluster
from tests.servers import Server

pytestmark = [pytest.mark.cluster, pytest.mark.spark]


def last_line(run: Carrying) -> str:
    assert run.ended() == 1, run.said()
    return run.said().strip().splitlines()[-1]


def test_executors_with_another_version(cluster: Cluster, pythons: Pythons, real: Server, tmp_path: Path) -> None:
    feed(real, 100)
    python = make_python(tmp_path / "older", like=pythons.bare)
    install(python, make_wheel(tmp_path / "wheel", version="0.0.9"))
    line = last_line(Carrying(cluster, tmp_path / "run", [real], python))
    assert "[RSTREAM_VERSION] the driver has spark-streams" in line
    assert f"{python} on" in line
    assert "has 0.0.9 at" in line


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
