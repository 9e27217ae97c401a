"""What is published: a source package with all that the clone has, and a wheel that works on its own."""

from __future__ import annotations

import email
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement

import spark_streams
from spark_streams.connector.spark.installation import NEEDED, SPARK, requirement, spark_remedy
from tests.jobs.test_deployed import bare_python

pytestmark = pytest.mark.in_turn

ROOT = Path(__file__).resolve().parents[2]
# What is no source: made by the set-up, by runs, by builds.
NOT_OURS = shutil.ignore_patterns(
    ".venv", ".git", "out", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis"
)
HOME = "https://github.com/spark-streams/spark-streams"
SITE = "https://spark-streams.github.io/spark-streams/"


class Built(NamedTuple):
    source: Path
    wheel: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """As a release makes them, the wheel from the source package; by this Python's setuptools."""
    return made_in(tmp_path_factory.mktemp("build") / "clone")


def made_in(clone: Path, umask: int = 0o022, age: int = 0) -> Built:
    """Build a copy of this clone, whose files were changed `age` seconds ago. umask: of the process that builds."""
    shutil.copytree(ROOT, clone, symlinks=True, ignore=NOT_OURS)
    for path in clone.rglob("*") if age else ():
        if path.is_file() and not path.is_symlink():
            os.utime(path, (path.stat().st_atime - age, path.stat().st_mtime - age))
            path.chmod(path.stat().st_mode & ~umask)
    command = [sys.executable, "-m", "tools.build_package"]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1767225600"}
    ended = subprocess.run(
        command, cwd=clone, env=environment, umask=umask, capture_output=True, text=True, check=False, timeout=120
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    name = f"spark_streams-{spark_streams.__version__}"
    assert ended.stdout.split() == [f"dist/{name}.tar.gz", f"dist/{name}-py3-none-any.whl"]
    return Built(*(clone / path for path in ended.stdout.split()))


def test_two_builds_are_the_same_bytes(built: Built, tmp_path: Path) -> None:
    """In another folder, of files with other times and rights, by a user whose new files have other rights."""
    other = made_in(tmp_path / "elsewhere" / "another-name", umask=0o077, age=86_400)
    assert other.source.read_bytes() == built.source.read_bytes()
    assert other.wheel.read_bytes() == built.wheel.read_bytes()
    with tarfile.open(built.source) as packed:
        members = packed.getmembers()
    assert [one.name for one in members] == sorted(one.name for one in members)
    assert {(one.mtime, one.uid, one.uname) for one in members} == {(1767225600, 0, "")}


def test_a_build_without_a_time_is_refused(tmp_path: Path) -> None:
    """In an unpacked source package there is no commit."""
    shutil.copytree(ROOT / "tools", tmp_path / "tools", ignore=NOT_OURS)
    environment = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    command = [sys.executable, "-m", "tools.build_package"]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.endswith(": set SOURCE_DATE_EPOCH\n")


def test_the_wheel_holds_the_package_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    files = (path for path in (ROOT / "spark_streams").rglob("*") if path.is_file() and path.suffix != ".pyc")
    pages = (path for part in ("guide", "reference") for path in (ROOT / "docs" / part).glob("*.md"))
    of_help = {f"spark_streams/operations/pages/{path.relative_to(ROOT / 'docs')}" for path in pages}
    of_jobs = {f"spark_streams/jobs/programs/{path.name}" for path in (ROOT / "jobs").glob("*.py")}
    of_jobs |= {f"spark_streams/jobs/conf/{path.name}" for path in (ROOT / "conf").iterdir()}
    assert names == {str(path.relative_to(ROOT)) for path in files} | of_help | of_jobs | {"pyspark_rstream.py"}


def test_what_the_wheel_says_of_itself(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        (folder,) = {name.split("/", 1)[0] for name in wheel.namelist() if ".dist-info/" in name}
        said = email.message_from_bytes(wheel.read(f"{folder}/METADATA"))
        entry_points = wheel.read(f"{folder}/entry_points.txt").decode()
        assert f"{folder}/licenses/LICENSE" in wheel.namelist()
    assert said["Version"] == spark_streams.__version__
    assert (said["License-Expression"], said["Requires-Python"]) == ("Apache-2.0", ">=3.11")
    assert all(HOME in url or SITE in url for url in said.get_all("Project-URL", []))
    needed = [Requirement(one) for one in said.get_all("Requires-Dist", [])]
    always = {one for one in needed if one.marker is None}

    def brought(extra: str) -> dict[str, Requirement]:
        return {one.name: one for one in needed if one.marker is not None and one.marker.evaluate({"extra": extra})}

    for_columns = brought("cluster")
    assert for_columns.keys() == {"numpy", "pyarrow"}
    fits = {one.name: one.specifier for one in [*always, *for_columns.values()]}
    assert fits == {name: Requirement(requirement(name, *bounds)).specifier for name, bounds in NEEDED.items()}
    with_spark = brought("spark")
    assert with_spark["pyspark"].specifier == Requirement(requirement("pyspark", *SPARK)).specifier
    assert (with_spark.keys(), with_spark["spark-streams"].extras) == ({"pyspark", "spark-streams"}, {"cluster"})
    assert "rstream = spark_streams.cli:main" in entry_points
    assert "[pytest11]\nrstream = spark_streams.pytest_plugin" in entry_points


def test_the_source_package_is_the_clone(built: Built) -> None:
    with tarfile.open(built.source) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split(
        "\n"
    )
    if not any(tracked):
        # In the unpacked source package there is no list of tracked files to compare with. In a clone it always runs.
        pytest.skip("this is no clone: nobody knows what belongs to one")
    assert {name for name in tracked if name and (ROOT / name).is_file()} <= names


def test_the_wheel_runs_where_the_clone_is_not(built: Built, tmp_path: Path) -> None:
    """With what it needs beside it, and no Spark."""
    needed = ("numpy", "numpy.libs", "pyarrow", "pyarrow.libs", "redis", "hiredis", "async_timeout", "click", "rich")
    python = bare_python(tmp_path / "env", (*needed, "pygments", "markdown_it", "mdurl"))
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--no-deps",
        "--no-index",
        str(built.wheel),
    ]
    subprocess.run(install, check=True, capture_output=True, timeout=120)
    _runs(python, tmp_path)


@pytest.mark.network
@pytest.mark.parametrize("what", ["source", "wheel"])
def test_either_installs_into_an_empty_environment(built: Built, tmp_path: Path, what: str) -> None:
    """With extra `cluster`. pip gets what it needs, and what builds it, by itself."""
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    install = [str(python), "-m", "pip", "install", f"spark-streams[cluster] @ file://{getattr(built, what)}"]
    ended = subprocess.run(install, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 0, ended.stderr
    _runs(python, tmp_path)


def _runs(python: Path, folder: Path) -> None:
    """The command, the engine and the check of the installation, which misses Spark alone."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK", "SPARK"))
    }
    environment |= {"PATH": f"{python.parent}:/usr/bin:/bin", "XDG_RUNTIME_DIR": str(folder)}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=60
        )

    told = run("rstream", "--version")
    assert told.stdout == f"rstream, version {spark_streams.__version__}\n", told
    program = (
        "from click.testing import CliRunner; from spark_streams.cli import main\n"
        "from spark_streams.engine import LocalEngine\n"
        "with LocalEngine() as engine:\n"
        "    for words in ('add orders a=1', 'streams'):\n"
        "        print(CliRunner().invoke(main, [*words.split(), '--url', engine.url]).output)"
    )
    used = run(str(python), "-c", program)
    assert "orders" in used.stdout, used
    looked = run(str(python), "-m", "spark_streams")
    assert str(python.parents[1]) in looked.stdout.splitlines()[0]
    wrong = [line for line in looked.stderr.splitlines() if "Java" not in line]
    assert wrong == [f"wrong: this Python has no Spark: {spark_remedy()}"]
