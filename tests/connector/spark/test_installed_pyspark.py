"""Spark's Python processes import the compiled PySpark that pip has installed, and not the one in Spark's archive."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import spark_streams
from spark_streams.connector.spark.startup.sitecustomize import FOLDER, remove_archives_of_pyspark


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """SPARK_HOME, whose archives are first on the path."""
    folder = tmp_path / "site-packages" / "pyspark"
    monkeypatch.setenv("SPARK_HOME", str(folder))
    monkeypatch.setattr(sys, "path", [*archives(folder), "/project"])
    return folder


def archives(home: Path) -> list[str]:
    return [str(home / "python" / "lib" / name) for name in ("pyspark.zip", "py4j-0.10.9.9-src.zip")]


def test_the_archives_are_left_out_if_the_same_pyspark_is_installed(home: Path) -> None:
    sys.path.append(str(home.parent))
    remove_archives_of_pyspark()
    assert sys.path == ["/project", str(home.parent)]


def test_the_archives_stay_if_this_python_has_another_pyspark_or_none(home: Path) -> None:
    sys.path.append("/other/site-packages")
    remove_archives_of_pyspark()
    assert sys.path == [*archives(home), "/project", "/other/site-packages"]


def test_the_path_stays_without_spark(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME")
    sys.path.append(str(home.parent))
    remove_archives_of_pyspark()
    assert sys.path == [*archives(home), "/project", str(home.parent)]


def start(
    *folders: str | Path, code: str = "import sys; print(*sys.path, sep='\\n')"
) -> subprocess.CompletedProcess[str]:
    """Run a Python with these folders in PYTHONPATH."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)


DAEMON = """
import sys, traceback
for kind in (BrokenPipeError, EOFError, ConnectionResetError, ValueError):
    try:
        raise kind("of a worker")
    except BaseException:
        traceback.print_exc()
"""


@pytest.mark.parametrize("is_daemon", [True, False])
def test_the_daemon_hides_tracebacks_of_closed_connections(is_daemon: bool, tmp_path: Path) -> None:
    """Another Python with the folder prints each of them."""
    package = tmp_path / "pyspark"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "daemon.py").write_text(DAEMON)
    (package / "other.py").write_text(DAEMON)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([FOLDER, str(tmp_path)])}
    command = [sys.executable, "-m", "pyspark.daemon" if is_daemon else "pyspark.other", "pyspark.worker"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    kinds = [line.partition(":")[0] for line in ended.stderr.splitlines() if line.endswith(": of a worker")]
    assert kinds == (
        ["ValueError"] if is_daemon else ["BrokenPipeError", "EOFError", "ConnectionResetError", "ValueError"]
    )


def test_a_process_with_the_folder_in_its_path_leaves_the_archives_out(home: Path) -> None:
    path = start(*archives(home), FOLDER, home.parent).stdout.splitlines()
    assert not {*archives(home), FOLDER} & set(path)


def test_another_sitecustomize_is_run_too(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.path.append('/found')")
    assert "/found" in start(FOLDER, tmp_path).stdout.splitlines()


def test_an_error_of_another_sitecustomize_is_shown(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import no_such_module")
    assert "no_such_module" in start(FOLDER, tmp_path).stderr


def test_processes_of_a_session_have_the_folder_in_their_path(spark: SparkSession) -> None:
    spark_streams.register(spark)
    spark_streams.register(spark)
    assert spark.sparkContext.environment["PYTHONPATH"].split(os.pathsep).count(FOLDER) == 1
