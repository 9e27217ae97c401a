"""The jobs where the package is installed nowhere: it comes with --py-files, one file, to the driver and the executors.

The executors have pyarrow, numpy, redis and hiredis besides; the driver has click and rich, too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow
import pyspark
import pytest

from tests.jobs.work import ROOT, SUBMIT, Work, sample
from tests.servers import Server

pytestmark = pytest.mark.spark

# redis itself needs async_timeout before Python 3.11.3.
NEEDED = ("numpy", "numpy.libs", "pyarrow", "pyarrow.libs", "redis", "hiredis", "async_timeout")
BY_DRIVER = (*NEEDED, "click", "rich", "pygments", "markdown_it", "mdurl")


def bare_python(folder: Path, needed: Sequence[str] = NEEDED) -> Path:
    """A Python that has what is needed, and neither this package nor pyspark nor any of their other dependencies."""
    venv.create(folder, symlinks=True)
    packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    installed = Path(pyarrow.__file__).parent.parent
    for name in needed:
        if (installed / name).exists():
            (packages / name).symlink_to(installed / name)
    for name in installed.glob("*.dist-info"):
        if name.name.split("-")[0] in needed:
            (packages / name.name).symlink_to(name)
    return folder / "bin" / "python"


def package(path: Path) -> Path:
    """What a wheel holds, as the zip that --py-files takes."""
    with zipfile.ZipFile(path, "w") as packed:
        for file in (*(ROOT / "spark_streams").rglob("*"), ROOT / "pyspark_rstream.py"):
            if file.is_file() and file.suffix != ".pyc":
                packed.write(file, file.relative_to(ROOT))
    return path


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


def test_a_driver_without_what_the_jobs_need_is_told_in_one_line(tmp_path: Path) -> None:
    """Spark's own Python comes with spark-submit, the package with --py-files."""
    python = bare_python(tmp_path / "env", (*NEEDED, "pyspark", "py4j"))
    environment = {**os.environ, "PYTHONPATH": str(package(tmp_path / "spark_streams.zip"))}
    for job in ("load", "etl", "aggregate", "archive", "reprocess_dead_letters"):
        command = [python, ROOT / "jobs" / f"{job}.py"]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert ended.returncode == 1
        assert ended.stderr.startswith(f"{job}.py: {python} lacks click: activate the environment")
        assert ended.stderr.count("\n") == 1
