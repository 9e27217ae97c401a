"""The sink inside Spark: tasks, workers, executors and drivers die, twins race; every row is there once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from spark_streams.sink.write import append
from tests.servers import Server
from tests.sink.spark_job import ROWS
from tests.sink.writing import frame, ledger_keys, numbers, options

pytestmark = pytest.mark.spark
ROOT = Path(__file__).resolve().parents[2]
_PATIENCE = 240.0  # seconds for a Spark job


@pytest.fixture(scope="module")
def both(engine_server: Server, redis_server: Server) -> list[Server]:
    """The bundled engine and a real redis-server, emptied."""
    servers = [engine_server, redis_server]
    for server in servers:
        with server.client() as client:
            client.flushall()
    return servers


def job(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    """A Spark job in a process group of its own; what it says goes to a file."""
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.sink.spark_job", *words],
            cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip


def finished(process: subprocess.Popen[bytes], folder: Path) -> None:
    try:
        code = process.wait(_PATIENCE)
    finally:
        kill(process)
    assert code == 0, (folder / "log").read_text()[-3000:]


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL for the driver, its JVM and all Python workers at once."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


@pytest.fixture(scope="module")
def after_tasks(both: list[Server], tmp_path_factory: pytest.TempPathFactory) -> list[Server]:
    """One cluster of two executors for all of these faults."""
    folder = tmp_path_factory.mktemp("tasks")
    finished(job(folder, "tasks", str(folder), *[server.url for server in both]), folder)
    assert len(list(folder.glob("*/*"))) == 8, "not every fault has happened"
    return both


@pytest.mark.parametrize("kind", ["engine", "redis"])
@pytest.mark.parametrize("fault", ["raise", "exit", "slow", "executor"])
def test_what_a_second_attempt_writes_is_not_written_twice(after_tasks: list[Server], kind: str, fault: str) -> None:
    """A failed task, a killed Python worker or executor, a speculative twin: behind a shuffle, every row once."""
    server = next(server for server in after_tasks if server.kind == kind)
    assert numbers(server, fault) == Counter(range(ROWS))


@pytest.mark.parametrize("fault", ["hold write", "hold commit"])
def test_a_killed_driver_leaves_nothing_twice(both: list[Server], fault: str, tmp_path: Path) -> None:
    """SIGKILL when some chunks are written, and when all are but Spark's commit log knows nothing; the next run has
    another number of partitions behind its shuffle."""
    for server in both:
        with server.client() as client:
            client.flushall()
        append([frame(list(range(5000)))], options(server.url, stream="in"), None)
    urls = [server.url for server in both]
    first = job(tmp_path, "query", str(tmp_path), fault, "2", *urls)
    try:
        touched = [tmp_path / str(at) / fault.replace(" ", "-") for at in range(len(urls))]
        deadline = time.monotonic() + _PATIENCE
        while not all(file.exists() for file in touched):
            assert first.poll() is None, (tmp_path / "log").read_text()[-3000:]
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        kill(first)
    before = [numbers(server) for server in both]
    finished(job(tmp_path, "query", str(tmp_path), "none", "3", *urls), tmp_path)
    for server, some in zip(both, before, strict=True):
        assert 0 < len(some) < 5000
        assert numbers(server) == Counter(range(5000))
        assert len(ledger_keys(server) - {"rstream:"}) <= 4
