"""The first program, started as an IDE, a notebook, cron, systemd and spark-submit start it: by a path, in no activated
environment. Another `python3` is first on PATH, or none of ours."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

import nbformat
import pyarrow
import pyspark
import pytest
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

from tools.servers.server import Server

pytestmark = pytest.mark.in_turn(3)  # each starts Spark
ROOT = Path(__file__).resolve().parents[3]
PACKAGES = Path(pyarrow.__file__).parents[1]
SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
LOG4J = ROOT / "spark_streams" / "jobs" / "conf" / "log4j2.properties"
SESSION = {
    "made by register()": "spark = spark_streams.register()",
    "of the program": """
from pyspark.sql import SparkSession
spark = spark_streams.register(SparkSession.builder.getOrCreate())""",
}
PROGRAM = """
orders = spark.readStream.format("rstream").schema("customer STRING, amount INT")
orders = orders.options(streams="orders", group="billing", startingOffsets="earliest").load()
orders.writeStream.format("console").trigger(availableNow=True).start().awaitTermination()
"""
ROW = "|     ada|   120|"


def python_of(folder: Path, *packages: Path) -> Path:
    """An environment of its own, which sees these folders of packages."""
    venv.create(folder, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (folder / "lib" / version / "site-packages" / "packages.pth").write_text("\n".join(map(str, packages)))
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python that has the package."""
    return python_of(tmp_path_factory.mktemp("ours") / "venv", ROOT, PACKAGES)


@pytest.fixture(scope="module")
def path_of_other(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH whose first python3 has no packages."""
    return f"{python_of(tmp_path_factory.mktemp('other') / 'venv').parent}:/usr/bin:/bin"


@pytest.fixture
def orders(engine_server: Server) -> Mapping[str, str]:
    """The environment of a service: almost none."""
    with engine_server.client() as client:
        client.flushall()
        client.xadd("orders", {"customer": "ada", "amount": "120"})
    options = f"-XX:TieredStopAtLevel=1 -Dlog4j2.configurationFile={LOG4J}"
    java = {"JAVA_HOME": os.environ["JAVA_HOME"]} if "JAVA_HOME" in os.environ else {}
    return {"RSTREAM_URL": engine_server.url, "SPARK_LOCAL_IP": "127.0.0.1", "JDK_JAVA_OPTIONS": options, **java}


def run(
    command: Sequence[str | Path], folder: Path, environment: Mapping[str, str], session: str = "made by register()"
) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(f"import spark_streams\n{SESSION[session]}\n{PROGRAM}")
    return subprocess.run(
        [*command, "program.py"], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=180
    )


STARTS: dict[str, Mapping[str, str]] = {
    "path only": {"PATH": "/usr/local/bin:/usr/bin:/bin"},
    "env -i": {},
    "another python3 first": {},
    "local-cluster": {
        "PATH": "/usr/bin:/bin",
        "PYSPARK_SUBMIT_ARGS": "--master local-cluster[1,1,1024] pyspark-shell",
    },
    "spark-submit": {},
}


@pytest.mark.parametrize("start", STARTS)
def test_the_session_that_register_makes_runs_this_python(
    start: str, python: Path, path_of_other: str, orders: Mapping[str, str], tmp_path: Path
) -> None:
    environment = {**orders, **STARTS[start]}
    command = [python]
    if start == "another python3 first":
        environment["PATH"] = path_of_other
    if start == "spark-submit":
        command = [SUBMIT]
        environment |= {"PATH": path_of_other, "PYSPARK_DRIVER_PYTHON": str(python)}
    ran = run(command, tmp_path, environment)
    assert ran.returncode == 0, ran.stderr
    assert ROW in ran.stdout


NAMED = "[RSTREAM_WORKER_PYTHON] Spark would run python3 (PYSPARK_PYTHON is not set), which does not have spark_streams"


def test_a_session_of_the_program_ends_with_one_line_that_names_the_setting(
    python: Path, path_of_other: str, orders: Mapping[str, str], tmp_path: Path
) -> None:
    ran = run([python], tmp_path, {**orders, "PATH": path_of_other}, "of the program")
    assert ran.returncode == 1
    [line] = [one for one in ran.stderr.splitlines() if "RSTREAM" in one]
    assert line.startswith(f"program.py: {NAMED}")
    assert f"export PYSPARK_PYTHON={python}, or set os.environ['PYSPARK_PYTHON'] before the program" in line
    assert "Traceback" not in ran.stderr
    assert "\tat " not in ran.stderr


def test_what_the_line_says_mends_it(
    python: Path, path_of_other: str, orders: Mapping[str, str], tmp_path: Path
) -> None:
    environment = {**orders, "PATH": path_of_other, "PYSPARK_PYTHON": str(python)}
    ran = run([python], tmp_path, environment, "of the program")
    assert ran.returncode == 0, ran.stderr
    assert ROW in ran.stdout


def test_a_python_that_something_names_is_kept(
    python: Path, path_of_other: str, orders: Mapping[str, str], tmp_path: Path
) -> None:
    """Also by register(): another Python may be meant. It is named."""
    other = Path(path_of_other.partition(":")[0]) / "python3"
    ran = run([python], tmp_path, {**orders, "PATH": "/usr/bin:/bin", "PYSPARK_PYTHON": str(other)})
    assert ran.returncode == 1
    assert f"[RSTREAM_WORKER_PYTHON] Spark would run {other} (PYSPARK_PYTHON), which does not have" in ran.stderr


@pytest.mark.parametrize("session", SESSION)
def test_in_a_kernel_of_a_notebook(
    session: str, python: Path, path_of_other: str, orders: Mapping[str, str], tmp_path: Path
) -> None:
    """The kernel's Python is a path in its kernelspec."""
    code = f"import spark_streams\n{SESSION[session]}\nspark.conf.set('spark.sql.shuffle.partitions', 1)"
    texts = (code, PROGRAM.replace('format("console")', MEMORY), SHOW)
    cells = [nbformat.v4.new_code_cell(one) for one in texts]  # type: ignore[no-untyped-call]
    notebook = nbformat.v4.new_notebook(cells=cells)  # type: ignore[no-untyped-call]
    manager = AsyncKernelManager()
    manager._kernel_spec = KernelSpec(
        argv=[str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        display_name="ours",
        language="python",
    )
    client = NotebookClient(notebook, km=manager, timeout=180, resources={"metadata": {"path": str(tmp_path)}})
    client.allow_errors = True
    environment = {**orders, "PATH": path_of_other, "IPYTHONDIR": str(tmp_path)}
    client.execute(env=environment)
    output = str(cells)
    if session == "of the program":
        assert NAMED in output
    else:
        assert "ada" in "".join(str(one.get("text", "")) for one in cells[2].outputs), output


MEMORY = 'format("memory").queryName("seen")'
SHOW = 'spark.table("seen").show()'
