"""The jobs without a clone: where a wheel is installed, and where the package comes with --py-files, one file, to the
driver and the executors.

Those executors have pyarrow, numpy, redis and hiredis besides; the driver has click and rich, too.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow
import pyarrow.dataset
import pyspark
import pytest

from tests.jobs.work import PATIENCE, ROOT, SUBMIT, Work, sample
from tools.servers.server import Server

pytestmark = pytest.mark.spark

# redis itself needs async_timeout before Python 3.11.3.
NEEDED = ("numpy", "numpy.libs", "pyarrow", "pyarrow.libs", "redis", "hiredis", "async_timeout")
BY_DRIVER = (*NEEDED, "click", "rich", "pygments", "markdown_it", "mdurl")
QUICK = "spark.spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
ALL = (*BY_DRIVER, "pyspark", "py4j")


def bare_python(folder: Path, needed: Sequence[str] = NEEDED) -> Path:
    """A Python that has what is needed, and neither this package nor pyspark nor any of their other dependencies."""
    venv.create(folder, symlinks=True)
    packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    installed = Path(pyarrow.__file__).parent.parent
    for name in needed:
        if (installed / name).exists():
            (packages / name).symlink_to(installed / name)
    for about in installed.glob("*.dist-info"):
        if about.name.split("-")[0] in needed:
            (packages / about.name).symlink_to(about)
    return folder / "bin" / "python"


def files_of_package() -> list[Path]:
    """All but the pages of `rstream help`. rglob does not follow the links to jobs/ and conf/."""
    linked = [ROOT / "spark_streams" / "jobs" / name for name in ("programs", "conf")]
    return [*(ROOT / "spark_streams").rglob("*"), *(file for folder in linked for file in folder.iterdir())]


def package(path: Path) -> Path:
    """What a wheel holds, as the zip that --py-files takes."""
    with zipfile.ZipFile(path, "w") as packed:
        for file in (*files_of_package(), ROOT / "pyspark_rstream.py"):
            if file.is_file() and file.suffix != ".pyc":
                packed.write(file, file.relative_to(ROOT))
    return path


@pytest.mark.long
def test_the_package_is_all_that_py_files_has_to_bring(
    engine_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster of two executors in processes of their own: file → stream → Parquet and letters."""
    monkeypatch.setenv("SPARK_HOME", str(Path(pyspark.__file__).parent))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with engine_server.client() as client:
        client.flushall()
    work = Work(tmp_path, engine_server)
    environment = work.environment()
    environment["PYSPARK_PYTHON"] = str(bare_python(tmp_path / "env"))
    environment["PYSPARK_DRIVER_PYTHON"] = str(bare_python(tmp_path / "driver", BY_DRIVER))
    environment.pop("PYTHONPATH", None)
    monkeypatch.setattr(work, "environment", lambda: environment, raising=False)
    cluster = ("--master", "local-cluster[2,1,512]", "--conf", "spark.executor.memory=512m")
    submit = (*SUBMIT, *cluster, "--py-files", str(package(tmp_path / "spark_streams.zip")))
    with work:
        work.start(work.arguments("load"), work.arguments("etl"), submit=submit).finish()
    departed = sum(row["dep_time"] != "NA" for row in sample())
    assert work.parquet("flights").num_rows == work.summary("etl")["parquet"] == departed
    with engine_server.client() as client:
        assert client.xlen("flights") == len(sample())
        assert client.xlen("flights:dead") == len(sample()) - departed


def test_a_driver_without_the_jobs_packages_fails_with_one_line(tmp_path: Path) -> None:
    """Spark's own Python comes with spark-submit, the package with --py-files."""
    python = bare_python(tmp_path / "env", (*NEEDED, "pyspark", "py4j"))
    environment = {**os.environ, "PYTHONPATH": str(package(tmp_path / "spark_streams.zip"))}
    for job in ("load", "etl", "aggregate", "archive", "reprocess_dead_letters"):
        command = [python, ROOT / "jobs" / f"{job}.py"]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert ended.returncode == 1
        assert ended.stderr.startswith(f"{job}.py: {python} lacks click: activate the environment")
        assert ended.stderr.count("\n") == 1


def test_a_python_without_pyspark_takes_that_of_spark_home(tmp_path: Path) -> None:
    python = bare_python(tmp_path / "env", BY_DRIVER)
    code = "from spark_streams.jobs.start import *; find_packages(); import pyspark; print(pyspark.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SPARK_HOME": str(Path(pyspark.__file__).parent)}
    found = subprocess.run([python, "-c", code], env=environment, capture_output=True, text=True, check=True).stdout
    assert "/python/lib/pyspark.zip/" in found
    environment["SPARK_HOME"] = str(tmp_path)
    lacking = subprocess.run([python, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert "lacks pyspark: " in lacking.stderr
    assert "pip install '/path/to/spark-streams[spark]' (or set SPARK_HOME)" in lacking.stderr


def test_a_wheel_holds_all_files_of_the_package() -> None:
    """Those that are no modules are named in pyproject.toml: also the pages of `rstream help`, which are a link."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["spark_streams"]
    named = {file for pattern in listed for file in (ROOT / "spark_streams").glob(pattern)}
    there = {file for file in files_of_package() if file.is_file() and file.suffix not in (".py", ".pyc")}
    pages = ROOT / "spark_streams" / "operations" / "pages"
    topics = {file for folder in ("guide", "reference") for file in (pages / folder).iterdir() if file.suffix == ".md"}
    assert topics
    assert named == (there | topics)


def without_a_stopped_worker(stderr: str) -> str:
    """Without what Spark's own worker prints if a stop closes its connection before the worker has written its result:
    a traceback of pyspark/daemon.py alone. The end of the run may cut it off."""
    frames = r'(?:  File "\S+/pyspark/daemon\.py", .*\n(?:    .*\n)*)*'
    return re.sub(rf"Traceback \(most recent call last\):\n{frames}(?:BrokenPipeError: .*\n|\Z)", "", stderr)


def test_what_a_stopped_worker_prints_is_left_out_and_nothing_else() -> None:
    frame = '  File "/lib/pyspark.zip/pyspark/daemon.py", line 95, in worker\n'
    trace = "Traceback (most recent call last):\n" + 2 * frame + "BrokenPipeError: [Errno 32] Broken pipe\n"
    assert without_a_stopped_worker(f"a\n{trace}b\n") == "a\nb\n"
    for lines in range(1, 5):
        assert without_a_stopped_worker("".join(trace.splitlines(keepends=True)[:lines])) == ""
    of_a_job = trace.replace("pyspark/daemon.py", "jobs/etl.py", 1)
    assert without_a_stopped_worker(of_a_job) == of_a_job


def test_where_the_package_is_installed_a_job_needs_no_clone(engine_server: Server, tmp_path: Path) -> None:
    """init, and run: in this Python, and by spark-submit; each goes on until SIGTERM. The folder's name has a blank."""
    python = bare_python(tmp_path / "venv", ALL)
    (packages,) = (tmp_path / "venv").glob("lib/python3*/site-packages")
    with zipfile.ZipFile(package(tmp_path / "wheel.zip")) as wheel:
        wheel.extractall(packages)
    for path in Path(pyarrow.__file__).parents[1].glob("installed_pyspark.pth"):  # scripts/_setup.sh: quicker imports
        shutil.copy(path, packages)
    folder = tmp_path / "my project"
    folder.mkdir()
    unset = ("PYSPARK", "SPARK", "PYTHON")  # but for the options of every JVM of the tests
    environment = {
        name: value for name, value in os.environ.items() if name == "SPARK_SUBMIT_OPTS" or not name.startswith(unset)
    }
    java_options = environment.get("SPARK_SUBMIT_OPTS", "").split()
    environment |= {
        "RSTREAM_URL": engine_server.url,
        "SPARK_LOCAL_IP": "127.0.0.1",
        # Beside a class archive, nothing drops the JVM's warnings (spark_settings.prepare).
        "SPARK_SUBMIT_OPTS": " ".join(one for one in java_options if not one.startswith("-XX:SharedArchiveFile=")),
    }
    rstream = [str(python), "-m", "spark_streams.cli"]

    def start(*words: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen([*rstream, *words], cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True)

    with engine_server.client() as client:
        client.flushall()
        for n in range(5):
            client.xadd("orders", {"customer": "ann", "amount": f"{n}.5"})
        said, _ = start("init", "etl", "--stream", "orders").communicate(timeout=PATIENCE)
        assert said == "wrote etl.toml: check it, then\n  rstream run etl --config etl.toml --check\n"
        runs = {}
        for name, words in (("here", []), ("submitted", ["--submit", "--set", "spark.spark.driver.host=127.0.0.1"])):
            own = [f"source.group={name}", f"job.checkpoint={name}/checkpoint", f"table.path={name}/orders"]
            own += ["job.trigger=200ms", "spark.master=local[1]", "spark.spark.ui.enabled=false", QUICK]
            sets = [word for one in own for word in ("--set", one)]
            runs[name] = start("run", "etl", "--config", "etl.toml", "--summary", f"{name}.json", *words, *sets)
        for name, run in runs.items():
            commits = folder / name / "checkpoint" / "commits" / "0"
            while not commits.exists() and run.poll() is None:
                time.sleep(0.05)
            run.send_signal(signal.SIGTERM)
            said, complained = run.communicate(timeout=PATIENCE)
            assert (run.returncode, without_a_stopped_worker(complained)) == (0, ""), said
            told = json.loads((folder / f"{name}.json").read_text())
            assert (told["entries"], told["parquet"], told["stopped"]) == (5, 5, True)
            rows = pyarrow.dataset.dataset(folder / name / "orders", partitioning="hive").to_table()
            assert sorted(rows["amount"].to_pylist()) == [0.5, 1.5, 2.5, 3.5, 4.5]
