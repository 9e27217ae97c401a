"""`python -m spark_streams`: is this an installation that works?"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow
import pytest

from spark_streams.connector.errors import WorkerPythonError
from spark_streams.connector.spark import installation
from spark_streams.connector.spark.installation import NEEDED, PYTHON, SPARK, numbers, requirement
from spark_streams.connector.spark.startup.sitecustomize import FOLDER
from tools.machine_time import machine_seconds

ROOT = Path(__file__).resolve().parents[3]


def check(program: str = sys.executable, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run it, with these variables; an empty one is unset."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": ""}
    variables |= environment
    given = {name: value for name, value in variables.items() if value}
    return subprocess.run(
        [program, "-m", "spark_streams"], env=given, cwd="/", capture_output=True, text=True, check=False, timeout=60
    )


def test_arguments_are_refused_because_they_mean_the_command_rstream() -> None:
    asked = [sys.executable, "-m", "spark_streams", "add", "orders", "customer=ada"]
    ended = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "rstream --help" in ended.stderr


def stub(folder: Path, name: str, says: str) -> Path:
    """A program that only says this."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{says}\n")
    path.chmod(0o755)
    return path


def java(folder: Path, version: str = "17.0.9") -> str:
    """JAVA_HOME of a Java of this version, for machines that have none."""
    (folder / "bin").mkdir(exist_ok=True)
    stub(folder / "bin", "java", f"echo 'openjdk version \"{version}\" 2026-01-01' >&2")
    return str(folder)


def test_a_whole_installation_is_a_few_lines_and_takes_no_time(tmp_path: Path) -> None:
    began = machine_seconds()
    ended = check(JAVA_HOME=java(tmp_path))
    assert (ended.returncode, ended.stderr) == (0, ""), ended
    assert machine_seconds() - began < 20  # without a Spark that starts; on a busy machine
    lines = {line.split("  ")[0]: line for line in ended.stdout.splitlines()}
    assert list(lines) == [
        "spark-streams", "Python", "pyspark", "pyarrow", "redis-py", "Java", 'format("rstream")',
    ]  # fmt: skip
    assert sys.executable in lines["Python"]
    assert "fits pyspark>=4.0,<5" in lines["pyspark"]
    assert "17.0.9" in lines["Java"]
    assert "found" in lines['format("rstream")']


def test_what_is_looked_for_is_what_the_project_declares() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    assert {requirement(name, *bounds) for name, bounds in NEEDED.items()} == {
        *project["dependencies"],
        *extras["cluster"],
    }
    assert ["spark-streams[cluster]", requirement("pyspark", *SPARK)] == extras["spark"]
    assert project["requires-python"] == ">=" + ".".join(map(str, PYTHON))


def test_it_loads_neither_spark_nor_arrow() -> None:
    program = (
        "import sys, spark_streams.connector.spark.installation as one; one.check_installation();"
        "print([name for name in ('pyspark', 'pyarrow', 'redis', 'click') if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("version", "said"),
    [("1.8.0_392", "Java 1 is too old"), ("11.0.2", "Java 11 is too old for Spark: install a JDK 17 or newer")],
)
def test_an_old_java_is_named_with_its_remedy(tmp_path: Path, version: str, said: str) -> None:
    ended = check(JAVA_HOME=java(tmp_path, version))
    assert ended.returncode == 1
    assert said in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_no_java_is_named_with_its_remedy(tmp_path: Path) -> None:
    ended = check(JAVA_HOME=str(tmp_path / "nowhere"))
    assert ended.returncode == 1
    assert f"no Java answers at {tmp_path}/nowhere/bin/java, and Spark needs one: install a JDK 17" in ended.stderr


@pytest.mark.parametrize("variable", ["PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"])
def test_another_python_for_spark_is_named_with_the_line_that_mends_it(tmp_path: Path, variable: str) -> None:
    """One without the package (-I: it does not look at PYTHONPATH, -S: nor at what pip has installed), or none."""
    bare = stub(tmp_path, "bare", f'exec {sys.executable} -I -S "$@"')
    ended = check(JAVA_HOME=java(tmp_path), **{variable: str(bare)})
    assert ended.returncode == 1
    wrong = f"Spark would run {bare} ({variable}), which does not have spark_streams, numpy, pyarrow, redis, hiredis"
    assert f"{wrong}: export {variable}={sys.executable}\n" in ended.stderr
    assert "not found" in ended.stdout
    ended = check(JAVA_HOME=java(tmp_path), **{variable: "jupyter-of-nowhere"})
    assert "which is not a Python that answers" in ended.stderr


def test_another_version_of_python_for_tasks_is_named(tmp_path: Path) -> None:
    other = stub(tmp_path, "other", """echo '{"version": [3, 9], "found": """ + _all() + """, "listed": true}'""")
    ended = check(JAVA_HOME=java(tmp_path), PYSPARK_PYTHON=str(other), PYSPARK_DRIVER_PYTHON=sys.executable)
    assert ended.returncode == 1
    assert "is Python 3.9, not 3." in ended.stderr
    assert "tasks" in ended.stdout
    assert "cannot run" in ended.stdout


def _all() -> str:
    return str(list(installation._ON_EXECUTORS)).replace("'", '"')


def test_packages_that_are_missing_or_too_old_are_one_sentence(tmp_path: Path) -> None:
    """A Spark that was downloaded says its version in a file of its own, and stands before the one of pip."""
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").write_text("")
    (tmp_path / "pyspark" / "version.py").write_text('__version__: str = "3.5.1"\n')
    ended = check(JAVA_HOME=java(tmp_path), PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert ended.returncode == 1
    assert f"does not work with Spark 3.5.1 ({tmp_path}/pyspark): run {sys.executable} -m pip install" in ended.stderr
    ended = check(str(stub(tmp_path, "bare", f'exec {sys.executable} -S "$@"')), JAVA_HOME=java(tmp_path))
    assert "this Python lacks pyarrow, redis, hiredis" in ended.stderr
    assert "this Python has no Spark: pip install '/path/to/spark-streams[spark]', or run this with" in ended.stderr
    assert ended.stderr.count("python -m pip install") == 1


@pytest.mark.parametrize("variable", ["SPARK_HOME", "PATH"])
def test_a_spark_that_pip_did_not_install_is_found_by_its_home(tmp_path: Path, variable: str) -> None:
    home = tmp_path / "spark"
    (home / "python" / "pyspark").mkdir(parents=True)
    (home / "python" / "pyspark" / "version.py").write_text('__version__: str = "4.0.1"\n')
    (home / "bin").mkdir()
    stub(home / "bin", "spark-submit", "")
    value = str(home) if variable == "SPARK_HOME" else f"{home}/bin:/usr/bin:/bin"
    bare = stub(tmp_path, "bare", f'exec {sys.executable} -S "$@"')
    ended = check(str(bare), **{"JAVA_HOME": java(tmp_path), "SPARK_HOME": "", variable: value})
    line = next(line for line in ended.stdout.splitlines() if line.startswith("pyspark"))
    assert line.split(maxsplit=2)[1:] == ["4.0.1", f"fits pyspark>=4.0,<5, of {home}: run with its spark-submit"]
    assert "has no Spark" not in ended.stderr


def test_versions_are_compared_by_their_numbers() -> None:
    assert [numbers(text) for text in ("4.3.0", "4.10.0.dev1", "26", "of unknown version")] == [
        (4, 3, 0), (4, 10, 0), (26,), (),
    ]  # fmt: skip


# -- The Python of a session's workers ---------------------------------------------------------------------------------


def session(python: str, master: str = "local[2]", sent: tuple[str, ...] = ()) -> Any:
    """What is asked of a session."""
    context = SimpleNamespace(
        master=master, pythonExec=python, environment={}, _python_includes=sent,
        getConf=lambda: SimpleNamespace(get=lambda _: None),
    )  # fmt: skip
    return SimpleNamespace(sparkContext=context)


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A Python that sees only its own packages, and those of PYTHONPATH; no variable names one."""
    for name in ("PYSPARK_PYTHON", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    return str(stub(tmp_path, "bare", f'exec {sys.executable} -S "$@"'))


def test_a_session_of_register_runs_this_python(bare: str) -> None:
    ours = session(bare)
    installation.set_up_workers(ours, True)
    assert ours.sparkContext.pythonExec == sys.executable
    assert FOLDER in ours.sparkContext.environment["PYTHONPATH"]


def test_another_session_whose_workers_lack_the_package_is_refused(bare: str) -> None:
    told = rf"run {re.escape(bare)} \(PYSPARK_PYTHON is not set\), .*export PYSPARK_PYTHON="
    with pytest.raises(WorkerPythonError, match=told):
        installation.set_up_workers(session(bare), False)


def test_packages_that_spark_sends_count(bare: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By --py-files and addPyFile: the archive or folder is below Spark's own."""
    packages = Path(pyarrow.__file__).parents[1]
    monkeypatch.setattr("pyspark.SparkFiles.getRootDirectory", lambda: str(packages.parent))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    installation.set_up_workers(session(bare, sent=(packages.name,)), False)


@pytest.mark.parametrize("master", ["spark://master:7077", "yarn", "k8s://https://cluster"])
def test_on_a_cluster_nothing_is_known_of_the_workers(bare: str, master: str) -> None:
    far = session(bare, master)
    installation.set_up_workers(far, True)
    assert (far.sparkContext.pythonExec, far.sparkContext.environment) == (bare, {})


def test_databricks_chooses_its_pythons_itself(bare: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "18.0")
    installation.set_up_workers(session(bare, "local[*, 4]"), False)


def test_a_session_is_looked_at_once(bare: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = session(bare)
    installation.set_up_workers(ours, True)
    monkeypatch.setattr(installation, "_check_spark_python", None)
    installation.set_up_workers(ours, False)
