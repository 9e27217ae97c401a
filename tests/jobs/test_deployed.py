"""The jobs on executors that have nothing but pyarrow, numpy, redis and hiredis: the package comes with --py-files."""

from __future__ import annotations

import sys
import venv
import zipfile
from pathlib import Path

import pyarrow
import pyspark
import pytest

from tests.jobs.work import ROOT, SUBMIT, Work, sample
from tests.servers import Server

pytestmark = pytest.mark.spark

# redis itself needs async_timeout before Python 3.11.3.
NEEDED = ("numpy", "numpy.libs", "pyarrow", "pyarrow.libs", "redis", "hiredis", "async_timeout")


def bare_python(folder: Path) -> Path:
    """A Python without this package, pyspark or any of their other dependencies."""
    venv.create(folder, symlinks=True)
    packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    installed = Path(pyarrow.__file__).parent.parent
    for name in NEEDED:
        if (installed / name).exists():
            (packages / name).symlink_to(installed / name)
    for name in installed.glob("*.dist-info"):
        if name.name.split("-")[0] in NEEDED:
            (packages / name.name).symlink_to(name)
    return folder / "bin" / "python"


def package(path: Path) -> Path:
    """What a wheel holds, as the zip that --py-files takes."""
    with zipfile.ZipFile(path, "w") as packed:
        for file in (*(ROOT / "spark_streams").rglob("*.py"), ROOT / "pyspark_rstream.py"):
            packed.write(file, file.relative_to(ROOT))
    return path


def test_executors_need_the_package_alone(
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
    environment["PYSPARK_DRIVER_PYTHON"] = sys.executable
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
